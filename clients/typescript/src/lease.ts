// The program's side of claims and leases, and of the worker, which all clients of the process share.

import { Worker } from 'node:worker_threads';
import { type Duration, millis, now, suspended } from './clock.js';
import { LeaseLost, errorOf } from './errors.js';
import type { Begin, Claim, Grant, Order, Report } from './worker.js';

/** A claim, or its lease, as long as the worker has it. */
type Held = { begin: Begin; isDropped: boolean; hear: (report: Report) => void };

/** Hears what is no error of the work. */
type Warn = (message: string) => void;

const EXIT_TIME = 2500; // For last words when the process exits.
const MAX_DEATHS = 5; // A worker that dies more often is not started again.

const all = new Map<number, Held>();
let worker: Worker | undefined;
let deaths = 0;
let lastId = 0;

const order = (order: Order) => worker?.postMessage(order);

function drop(held: Held): void {
    held.isDropped = true;
    order({ do: 'drop', id: held.begin.id });
}

function start(): Worker {
    // The options and hooks of the program (`--import`, NODE_OPTIONS) are not for this thread.
    const own = { env: { ...process.env, NODE_OPTIONS: '' }, execArgv: [], workerData: suspended.ms };
    const started = new Worker(new URL('./worker.js', import.meta.url), own);
    let why = 'it was terminated';
    let hasReported = false;
    started.on('error', (error) => (why = error.message));
    started.on('message', (report: Report) => {
        hasReported = true;
        all.get(report.id)?.hear(report);
    });
    started.on('exit', () => {
        worker = hasReported && ++deaths <= MAX_DEATHS && all.size > 0 ? start() : undefined;
        const message = `the thread that renews leases does not run: ${why}; if this is a bundle, leave lockkeeper out`;
        for (const held of [...all.values()]) {
            const { id, claim, grant, end } = held.begin;
            const failure = { kind: 'ServiceUnavailable', message, fields: { key: claim.key, outcome: 'unknown' } } as const;
            if (!worker) held.hear({ id, is: 'failed', failure });
            if (grant) grant.end = Number(Atomics.load(end, 0));
            order(held.begin);
            if (held.isDropped) drop(held);
        }
    });
    started.unref(); // After `message` is listened to, which would undo it.
    return started;
}

// At the end of the process, also by process.exit() or an exception that nothing catches, all is released.
process.on('exit', () => {
    const done = new Int32Array(new SharedArrayBuffer(4));
    if (!worker || all.size === 0) return;
    order({ do: 'end', done });
    Atomics.wait(done, 0, 0, EXIT_TIME);
});

/** Keeps the process alive until the returned function is called. */
export function stayAlive(): () => void {
    const timer = setInterval(() => {}, 1 << 30);
    return () => clearInterval(timer);
}

/** Waits for the grant. Rejects with the signal's reason once it is aborted and nothing is left of the claim. */
export async function acquire(claim: Claim, warn: Warn, signal?: AbortSignal): Promise<Lease> {
    signal?.throwIfAborted();
    const caller = new Error().stack ?? '';
    const begin: Begin = { do: 'begin', id: ++lastId, claim, end: new BigInt64Array(new SharedArrayBuffer(8)) };
    const held: Held = { begin, isDropped: false, hear: () => {} };
    const cancel = () => drop(held);
    const rest = stayAlive();
    try {
        return await new Promise<Lease>((resolve, reject) => {
            held.hear = (report) => {
                if (report.is === 'troubled') return;
                if (report.is === 'granted') {
                    // If the claim was dropped, its release is reported next.
                    if (!held.isDropped) resolve(new Lease(held, report.grant, warn));
                    return;
                }
                all.delete(begin.id);
                if (held.isDropped || report.is !== 'failed') return reject(signal?.reason);
                const error = errorOf(report.failure);
                error.stack = `${error}${caller.slice(caller.indexOf('\n'))}`;
                reject(error);
            };
            worker ??= start();
            all.set(begin.id, held);
            signal?.addEventListener('abort', cancel);
            order(begin);
        });
    } finally {
        signal?.removeEventListener('abort', cancel);
        rest();
    }
}

/** A lease, which is renewed until it is released or the process ends. It does not keep the process alive. */
export class Lease {
    readonly key: string;
    /** Whatever the key guards should refuse a number below the highest that it has seen. */
    readonly fencingToken: number;
    /** With `slots`: the number of its place, from 1, that no other lease of the key has. */
    readonly slot: number | undefined;
    /** Aborted with LeaseLost before the lease ends: stop then. In withLock() also by the signal of the options. */
    readonly signal: AbortSignal;
    readonly #control = new AbortController();
    readonly #held: Held;
    readonly #warn: Warn;
    /** The work is told so long before the end. */
    readonly #margin: number;
    #timer: NodeJS.Timeout | undefined;
    #why = 'this process was busy or suspended for too long';
    #lost: LeaseLost | undefined;
    #release: Promise<void> | undefined;
    /** The last report, after which the worker has it no more. */
    #last: Report | undefined;
    #wake = () => {};

    /** @internal */
    constructor(held: Held, grant: Grant, warn: Warn) {
        const { key, ttl } = held.begin.claim;
        ({ fencingToken: this.fencingToken, slot: this.slot } = grant);
        [this.key, this.signal, this.#held, this.#warn] = [key, this.#control.signal, held, warn];
        this.#margin = Math.min(Math.max(200, ttl / 10), ttl / 2);
        held.begin.grant = grant;
        held.hear = (report) => this.#hear(report);
        this.#watch();
    }

    /** The secret that proves the lease to the service. */
    get token(): string {
        return this.#held.begin.claim.token;
    }

    /** The seconds that the lease lasts at least, unless it is ended by force. Right also in a blocked event loop. */
    remaining(): number {
        return Math.max(0, this.#left()) / 1e3;
    }

    /** Whether the lease lasts for so long, and not only until the work would be told: for loops that never wait. */
    stillMine = (forNext: Duration = 0): boolean =>
        !this.#lost && !this.#release && this.#left() > Math.max(this.#margin, millis('stillMine', forNext));

    /** Releases the lease. Rejects with LeaseLost if it has ended before, or the work was told that it would. */
    release(): Promise<void> {
        return (this.#release ??= this.#giveBack());
    }

    /** For `await using`. */
    [Symbol.asyncDispose](): Promise<void> {
        return this.release();
    }

    /** @internal The work is wanted no more. */
    cancel(reason: unknown): void {
        this.#control.abort(reason);
    }

    /** Milliseconds. The worker writes the end. */
    #left(): number {
        return Number(Atomics.load(this.#held.begin.end, 0)) - now();
    }

    #watch(): void {
        const left = this.#left() - this.#margin;
        if (left <= 0) return this.#lose(this.#why);
        this.#timer = setTimeout(() => this.#watch(), Math.min(left, 1000)).unref(); // A suspension stops timers.
    }

    #lose(why: string): void {
        clearTimeout(this.#timer);
        this.#lost ??= new LeaseLost(`the lease of '${this.key}' is lost: ${why}`, { key: this.key });
        this.#control.abort(this.#lost);
    }

    #hear(report: Report): void {
        if (report.is === 'granted') return; // Once more, by a worker in place of one that died.
        if (report.is === 'failed') this.#why = report.failure.message; // The work is told before the end.
        if (report.is === 'troubled') return void (this.#why = report.why);
        if (report.is === 'lost') this.#lose(report.why);
        all.delete(report.id);
        this.#last = report;
        this.#wake();
    }

    async #giveBack(): Promise<void> {
        const isOver = this.#left() <= 0;
        const rest = stayAlive();
        clearTimeout(this.#timer);
        if (!this.#last) await new Promise<void>((resolve) => ((this.#wake = resolve), drop(this.#held)));
        rest();
        const last = this.#last!;
        if (isOver) this.#lose(this.#why);
        if (last.is === 'released' && last.how === 'gone') this.#lose(last.why);
        if (this.#lost) throw this.#lost;
        const why = last.is === 'failed' ? this.#why : last.is === 'released' && last.how === 'unreached' && last.why;
        if (why) this.#warn(`'${this.key}' is not released and will expire: ${why}`);
    }
}
