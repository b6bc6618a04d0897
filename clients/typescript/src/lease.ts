// The program's side of claims and leases, and of the worker, which all clients of the process share.

import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { type Duration, millis, now, suspended } from './clock.js';
import { type Failure, LeaseLost, errorOf } from './errors.js';
import type { Begin, Claim, Order, Report } from './worker.js';

const EXIT_TIME = 2500; // For last words when the process exits.

/** The milliseconds of an end that its caller does not wait for: a service that answers is told by then. */
export const MOMENT = 250;

const all = new Map<number, Lease>();
let worker: Worker | undefined;
let lastId = 0;

const send = (order: Order) => worker?.postMessage(order);

function start(): Worker {
    // The options and hooks of the program (`--import`, NODE_OPTIONS) are not for this thread.
    const own = { env: { ...process.env, NODE_OPTIONS: '' }, execArgv: [], workerData: suspended.ms };
    const started = new Worker(join(__dirname, 'worker.js'), own);
    let why = 'it was terminated';
    started.on('error', (error) => (why = error.message));
    started.on('message', (report: Report) => all.get(report.id)?.hear(report));
    started.on('exit', () => {
        worker = undefined; // The next claim starts another one. Leases of this one are told of their end.
        const message = `the thread that renews leases has ended: ${why}; if this is a bundle, leave lockkeeper out`;
        const failure: Failure = { kind: 'ServiceUnavailable', message, fields: { outcome: 'unknown' } };
        for (const [id, lease] of [...all]) {
            lease.hear({ id, is: 'failed', failure });
            lease.hear({ id, is: 'released', why: '' });
        }
    });
    started.unref(); // After `message` is listened to, which would undo it.
    return started;
}

// At the end of the process, also by process.exit() or an exception that nothing catches, all is released.
process.on('exit', () => {
    const done = new Int32Array(new SharedArrayBuffer(4));
    if (!worker || all.size === 0) return;
    send({ do: 'end', done });
    Atomics.wait(done, 0, 0, EXIT_TIME);
});

/** Keeps the process alive until the promise is settled. */
export async function stayAlive<T>(promise: Promise<T>): Promise<T> {
    const timer = setInterval(() => {}, 1 << 30);
    return promise.finally(() => clearInterval(timer));
}

/**
 * A lease, of one key or of several, which is renewed until it is released or the process ends. It does not keep the
 * process alive.
 */
export class Lease {
    readonly keys: readonly string[];
    /** By key. Whatever a key guards should refuse a number below the highest that it has seen. */
    readonly fencingTokens: Readonly<Record<string, number>> = {};
    /** By key, with `slots`: the number of its place, from 1, that no other lease of the key has. */
    readonly slots: Readonly<Record<string, number | undefined>> = {};
    readonly #control = new AbortController();
    /** Aborted with LeaseLost before the lease ends: stop then. In withLock() also by the signal of the options. */
    readonly signal: AbortSignal = this.#control.signal;
    readonly #begin: Begin;
    readonly #warn: (message: string) => void;
    #margin: number; // The work is told so long before the end.
    #isDropped = false;
    #last: Report | undefined; // What became of it. The worker may be about to end what is left.
    #over = () => {}; // Nothing is left.
    readonly #ended = new Promise<void>((resolve) => (this.#over = resolve));
    #wake = () => {};
    #timer: NodeJS.Timeout | undefined;
    #why = 'this process was busy or suspended for too long';
    #lost: LeaseLost | undefined;
    #release: Promise<void> | undefined;

    /** @internal */
    constructor(claim: Claim, warn: (message: string) => void) {
        [this.keys, this.#warn] = [claim.keys.keys, warn];
        this.#begin = { do: 'begin', id: ++lastId, claim, end: new BigInt64Array(new SharedArrayBuffer(8)) };
        this.#margin = Math.max(200, claim.ttl / 10);
    }

    get key(): string {
        return this.#only('key', 'keys');
    }

    /** Whatever the key guards should refuse a number below the highest that it has seen. */
    get fencingToken(): number {
        return this.fencingTokens[this.#only('fencingToken', 'fencingTokens')]!;
    }

    /** With `slots`: the number of its place, from 1, that no other lease of the key has. */
    get slot(): number | undefined {
        return this.slots[this.#only('slot', 'slots')];
    }

    /** The secret that proves the lease to the service. */
    get token(): string {
        return this.#begin.claim.token;
    }

    /** The seconds that the lease lasts at least, unless it is ended by force. Right also in a blocked event loop. */
    remaining = (): number => (this.#lost || this.#release ? 0 : Math.max(0, this.#left()) / 1e3);

    /** Whether the lease lasts for so long, and not only until the work would be told: for loops that never wait. */
    stillMine = (forNext: Duration = 0): boolean =>
        this.remaining() * 1e3 > Math.max(this.#margin, millis('stillMine', forNext));

    /** Releases the lease. Rejects with LeaseLost if it has ended before, or the work was told that it would. */
    release = (): Promise<void> => (this.#release ??= this.#giveBack());

    /** `await using lease = ...` releases it at the end of the block, and rejects as release() does. */
    async [Symbol.asyncDispose](): Promise<void> {
        await this.release();
    }

    /** @internal Waits for the grant. Rejects with the signal's reason once it is aborted, and nothing is left. */
    async acquire(signal?: AbortSignal): Promise<this> {
        signal?.throwIfAborted();
        const caller = new Error().stack ?? '';
        let isLate = false;
        const cancel = () => {
            this.#drop();
            setTimeout(() => ((isLate = true), this.#wake()), MOMENT);
        };
        worker ??= start();
        all.set(this.#begin.id, this);
        signal?.addEventListener('abort', cancel);
        send(this.#begin);
        await this.#next();
        signal?.removeEventListener('abort', cancel);
        while (this.#isDropped && !this.#last && !isLate) await this.#next();
        if (this.#isDropped || this.#last?.is === 'failed') void stayAlive(this.#ended); // It is withdrawn behind the caller.
        if (this.#isDropped) throw signal!.reason;
        if (this.#last?.is !== 'failed') return this;
        const error = errorOf(this.#last.failure);
        Object.assign(error, { key: error.key ?? this.keys[0] });
        error.stack = `${error}${caller.slice(caller.indexOf('\n'))}`;
        throw error;
    }

    /** @internal */
    hear(report: Report): void {
        if (report.is === 'troubled') return void (this.#why = report.why);
        if (report.is === 'waiting') return this.#warn(report.why);
        if (report.is === 'granted') {
            if (this.#isDropped) return; // Its release is reported next.
            const { numbers: fencingTokens, slots } = report.grant;
            Object.assign(this, { fencingTokens, slots });
            // In the middle of a short lease, which a max_hold may have cut, at the latest.
            this.#margin = Math.min(this.#margin, report.grant.ttl / 2);
            this.#watch();
        } else {
            if (report.is !== 'failed' && report.is !== 'lost') {
                all.delete(report.id);
                this.#over();
            }
            if (this.#last) return;
            this.#last = report;
            if (report.is === 'lost') this.#lose(report.why, report.keys);
            if (report.is === 'failed') this.#why = report.failure.message; // The work is told before the end.
        }
        this.#wake();
    }

    /** @internal Throws if there is no lease to begin with: this process may have been suspended since the grant. */
    begin(): void {
        if (this.#left() <= this.#margin) this.#lose(this.#why, [], 'began', 'nothing ran');
        this.signal.throwIfAborted();
    }

    /** @internal The work is wanted no more. */
    cancel(reason: unknown): void {
        this.#control.abort(reason);
    }

    #drop(): void {
        this.#isDropped = true;
        send({ do: 'drop', id: this.#begin.id });
    }

    #only(name: string, names: string): string {
        if (!this.#begin.claim.keys.claimed) return this.keys[0]!;
        throw new TypeError(`a lease of several keys has no \`${name}\`: use \`${names}\``);
    }

    #next = () => stayAlive(new Promise<void>((resolve) => (this.#wake = resolve)));

    /** Milliseconds. The worker writes the end. */
    #left = () => Number(Atomics.load(this.#begin.end, 0)) - now();

    #watch(): void {
        const left = this.#left() - this.#margin;
        if (left <= 0) return this.#lose(this.#why);
        this.#timer = setTimeout(() => this.#watch(), Math.min(left, 1000)).unref(); // A suspension stops timers.
    }

    #lose(why: string, lost: string[] = [], before = 'ended', then = 'other work may overlap with yours'): void {
        clearTimeout(this.#timer);
        const name = lost.length ? lost.map((key) => `'${key}'`).join(', ') : this.#begin.claim.keys.name;
        const message = `the lease on ${name} was lost before the work ${before}: ${why}; ${then}`;
        this.#lost ??= new LeaseLost(message, { key: lost[0] ?? this.keys[0] });
        this.#control.abort(this.#lost);
    }

    async #giveBack(): Promise<void> {
        const isOver = this.#left() <= 0;
        clearTimeout(this.#timer);
        if (!this.#last || this.#last.is === 'lost') this.#drop(); // Of several keys others may be left.
        while (!this.#last) await this.#next();
        const last = this.#last as Report;
        if (isOver) this.#lose(this.#why);
        if (last.is === 'gone') this.#lose(last.why, last.keys);
        if (this.#lost) throw this.#lost;
        if (last.is === 'unreached' || last.is === 'failed') {
            this.#warn(`${this.#begin.claim.keys.name} is not released; the lease ends by its TTL: ${last.is === 'failed' ? this.#why : last.why}`);
        }
    }
}
