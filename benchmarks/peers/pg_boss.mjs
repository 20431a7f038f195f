// The driver of pg-boss. Tuned: batches of 500, burst while batches are full, notify, and polls twice a second,
// its minimum. Both intervals are set, because with notify it would poll for timed jobs only every 30 seconds.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { record, run } from "./protocol.mjs";

const require = createRequire(process.env.BENCH_NODE_MODULES + "/");
const { PgBoss } = await import(pathToFileURL(require.resolve("pg-boss")).href);

async function open(order) {
  const boss = new PgBoss({ connectionString: order.dsn, useListenNotify: order.mode === "tuned" });
  boss.on("error", (error) => process.stderr.write(`${error}\n`));
  await boss.start();
  return boss;
}

run({
  async install(order) {
    const boss = await open(order);
    await boss.createQueue("work", { notify: true });
    await boss.stop({ graceful: false });
  },

  async sending(order) {
    const boss = await open(order);
    const timed = (due) => (due === null ? {} : { startAfter: new Date(1000 * due) });
    return {
      send: (job, due) => boss.send("work", job, timed(due)),
      async sendMany(jobs, due) {
        for (let start = 0; start < jobs.length; start += 10_000) {
          const batch = jobs.slice(start, start + 10_000);
          await boss.insert("work", batch.map((each) => ({ data: each, ...timed(due) })));
        }
      },
      close: () => boss.stop({ graceful: false }),
    };
  },

  async working(order) {
    const boss = await open(order);
    const settings =
      order.mode === "tuned"
        ? {
            batchSize: 500,
            burstWhenBatchFull: true,
            pollingIntervalSeconds: 0.5,
            notifyPollingIntervalSeconds: 0.5,
          }
        : {};
    await boss.work("work", settings, async (jobs) => {
      for (const job of jobs) record(job.data.t);
    });
    return () => boss.stop({ graceful: true, timeout: 5000 });
  },
});
