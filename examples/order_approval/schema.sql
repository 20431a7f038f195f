-- The tables of the service. Those of the library are created when the application starts.
CREATE TABLE stock (item text PRIMARY KEY, count integer NOT NULL CHECK (count >= 0));
CREATE TABLE orders (
    number integer PRIMARY KEY,
    item text NOT NULL REFERENCES stock,
    status text NOT NULL DEFAULT 'new',
    price integer,
    payment text
);
INSERT INTO stock VALUES ('chair', 2), ('piano', 1);
