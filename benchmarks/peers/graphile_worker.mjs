// The driver of graphile-worker. Tuned: a concurrency of 100, a local queue of 1,000, completions in batches
// (delay 0), polls every 100 ms. It deletes finished jobs.

import { createRequire } from "node:module";
import { record, run } from "./protocol.mjs";

const require = createRequire(process.env.BENCH_NODE_MODULES + "/");
const { Logger, makeWorkerUtils, run: runWorker, runMigrations } = require("graphile-worker");
const logger = new Logger(() => () => {});

run({
  install: (order) => runMigrations({ connectionString: order.dsn, logger }),

  async sending(order) {
    const utils = await makeWorkerUtils({ connectionString: order.dsn, logger });
    const timed = (due) => (due === null ? {} : { runAt: new Date(1000 * due) });
    return {
      send: (job, due) => utils.addJob("work", job, timed(due)),
      async sendMany(jobs, due) {
        for (let start = 0; start < jobs.length; start += 10_000) {
          const batch = jobs.slice(start, start + 10_000);
          await utils.addJobs(batch.map((each) => ({ identifier: "work", payload: each, ...timed(due) })));
        }
      },
      close: () => utils.release(),
    };
  },

  async working(order) {
    const tuned = order.mode === "tuned";
    const short = order.job === "short";
    const runner = await runWorker({
      connectionString: order.dsn,
      logger,
      noHandleSignals: true,
      taskList: {
        work: async (job) => {
          record(job.t);
          if (short) await new Promise((resolve) => setTimeout(resolve, 1));
        },
      },
      ...(tuned && {
        concurrency: order.options.slots ?? 100,
        pollInterval: 100,
        preset: { worker: { localQueue: { size: 1000 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
      }),
    });
    await new Promise((resolve) => setTimeout(resolve, order.n >= 5000 ? 0 : 1000));
    return () => runner.stop();
  },
});
