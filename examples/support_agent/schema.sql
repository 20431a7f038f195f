CREATE TABLE question (token text PRIMARY KEY, tool text NOT NULL, arguments text NOT NULL);
CREATE TABLE refund (call_id text PRIMARY KEY, order_id integer NOT NULL);
CREATE TABLE tool_call (at timestamptz NOT NULL DEFAULT now(), tool text NOT NULL);
