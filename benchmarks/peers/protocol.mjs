// The common part of the drivers for Node; see protocol.py.

import readline from "node:readline";

const lines = readline.createInterface({ input: process.stdin });
const waiting = [];
const unread = [];
lines.on("line", (line) => (waiting.length ? waiting.shift()(line) : unread.push(line)));
lines.on("close", () => waiting.forEach((resolve) => resolve("")));
const readLine = () =>
  unread.length ? Promise.resolve(unread.shift()) : new Promise((resolve) => waiting.push(resolve));

const sendEvent = (fields) => process.stdout.write(JSON.stringify(fields) + "\n");
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
export const now = () => (performance.timeOrigin + performance.now()) / 1000;
const payload = (reference, number) => ({ t: reference, user: `user-${number}@example.org` });

const state = { wanted: 0, count: 0, first: 0, last: 0, step: 1000, samples: [], marks: [], cpu: null, used: 0 };
let finish;
const done = new Promise((resolve) => (finish = resolve));

/** Record the start of a job. */
export function record(reference) {
  const instant = now();
  if (!state.count) {
    state.first = instant;
    state.cpu = process.cpuUsage();
  }
  state.count += 1;
  state.last = instant;
  if (reference) state.samples.push(instant - reference);
  if (state.count % state.step === 0) state.marks.push([instant, state.count]);
  if (state.count === state.wanted) {
    state.used = cpu();
    finish();
  }
}

function cpu() {
  if (!state.cpu) return 0;
  const used = process.cpuUsage(state.cpu);
  return (used.user + used.system) / 1e6;
}

async function sendSingly(order, sender) {
  let number = 0;
  const caller = async () => {
    while (number < order.n) {
      const mine = number++;
      if (order.every) await pause(order.every * (0.5 + Math.random()));
      const instant = now();
      const due = order.lead === null ? null : instant + order.lead;
      await sender.send(payload(due ?? (order.every ? instant : 0), mine), due);
    }
  };
  const began = now();
  await Promise.all(Array.from({ length: order.callers }, caller));
  return { seconds: now() - began };
}

async function untilDone(quiet) {
  const stopped = readLine();
  if (!quiet) return Promise.race([stopped, done]);
  let over = false;
  const ended = Promise.race([stopped, done]).then(() => (over = true));
  while (!over) {
    await Promise.race([ended, pause(0.1)]);
    if (state.count && now() - state.last > quiet) return;
  }
}

async function execute(order, peer) {
  if (order.op === "install") return (await peer.install(order)) ?? {};
  if (order.op === "many" || order.op === "single") {
    const sender = await peer.sending(order);
    const jobs = order.op === "many" ? Array.from({ length: order.n }, (_, i) => payload(order.due ?? 0, i)) : [];
    sendEvent({ event: "ready" });
    await readLine();
    let result;
    if (order.op === "many") {
      const began = now();
      await sender.sendMany(jobs, order.due);
      result = { seconds: now() - began };
    } else {
      result = await sendSingly(order, sender);
    }
    await sender.close();
    return result;
  }
  sendEvent({ event: "ready" });
  await readLine();
  state.wanted = order.n;
  state.step = order.n ? Math.max(1, Math.floor(order.n / 100)) : 1000;
  const before = process.memoryUsage().rss;
  const stop = await peer.working(order);
  sendEvent({ event: "started", rss: process.memoryUsage().rss });
  let sent = {};
  if (order.op === "both") {
    const sender = await peer.sending(order);
    sent = await sendSingly(order, sender);
    await untilDone(order.quiet);
    await sender.close();
  } else {
    await untilDone(order.quiet);
  }
  const result = {
    count: state.count, first: state.first, last: state.last, cpu: state.used || cpu(),
    samples: state.samples, marks: state.marks, rss: process.memoryUsage().rss, rss_before: before, ...sent,
  };
  await stop();
  return result;
}

/** Run the driver. */
export async function run(peer) {
  const order = {
    n: 0, mode: "default", callers: 1, every: 0, due: null, lead: null, quiet: 0, options: {},
    ...JSON.parse(process.argv[2]),
  };
  const result = await execute(order, peer);
  process.stdout.write(JSON.stringify({ event: "result", ...result }) + "\n", () => process.exit(0));
}
