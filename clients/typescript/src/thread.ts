// The program's side of the worker: one for all clients of the process, started with the first claim.

import { Worker } from 'node:worker_threads';
import { suspended } from './clock.js';
import type { Failure } from './errors.js';
import type { Order, Report } from './worker.js';

/** A claim, or its lease, as long as the worker has it. */
export interface Held {
    /** What the worker needs to begin, or to go on with it after a restart. */
    order: Order & { do: 'claim' };
    isDropped: boolean;
    hear(report: Report): void;
}

// The time for last words when the process exits.
const EXIT_TIME = 2500;

// A worker that dies so often is not started again.
const MAX_DEATHS = 5;

const all = new Map<number, Held>();
let worker: Worker | undefined;
let deaths = 0;
let lastId = 0;

export const newId = () => ++lastId;

/** Hands a claim over. */
export function take(held: Held): void {
    worker ??= start();
    all.set(held.order.id, held);
    worker.postMessage(held.order);
}

/** Asks for a report that it is released; after a grant also for the release. */
export function drop(held: Held): void {
    held.isDropped = true;
    worker?.postMessage({ do: 'release', id: held.order.id } satisfies Order);
}

/** No more reports. */
export function forget(held: Held): void {
    all.delete(held.order.id);
}

function start(): Worker {
    // The options and hooks of the program (`--import`, NODE_OPTIONS) are not for this thread.
    const env = { ...process.env, NODE_OPTIONS: '' };
    const workerData = { suspended: suspended.ms };
    const started = new Worker(new URL('./worker.js', import.meta.url), { env, execArgv: [], workerData });
    let why = 'it was terminated';
    let hasReported = false;
    started.on('error', (error) => (why = error.message));
    started.on('message', (report: Report) => {
        hasReported = true;
        all.get(report.id)?.hear(report);
    });
    started.on('exit', () => {
        worker = undefined;
        if (all.size === 0) return;
        if (hasReported && ++deaths < MAX_DEATHS) {
            worker = start();
            for (const held of all.values()) {
                const { grant, end } = held.order;
                if (grant) grant.end = Number(Atomics.load(end, 0));
                worker.postMessage(held.order);
                if (held.isDropped) drop(held);
            }
            return;
        }
        const message = `the thread that renews leases does not run: ${why} `
            + '(a bundler has to leave out the package lockkeeper, which has this thread in a file of its own)';
        for (const { order, hear } of [...all.values()]) {
            const fields = { key: order.claim.key, outcome: 'unknown', code: '' };
            hear({ id: order.id, is: 'failed', failure: { kind: 'ServiceUnavailable', message, fields } satisfies Failure });
        }
    });
    started.unref(); // After `message` is listened to, which refers to it.
    return started;
}

// At the end of the process, also by process.exit() or an exception that nothing catches, what is held is released.
process.on('exit', () => {
    if (!worker || all.size === 0) return;
    const done = new Int32Array(new SharedArrayBuffer(4));
    worker.postMessage({ do: 'end', done } satisfies Order);
    Atomics.wait(done, 0, 0, EXIT_TIME);
});
