// A lease in the program's hands.

import { type Duration, millis, now } from './clock.js';
import { LeaseLost } from './errors.js';
import { type Held, drop, forget } from './thread.js';
import type { Grant, Report } from './worker.js';

/** The time before the end at which the work is told, of a TTL in milliseconds. */
const margin = (ttl: number) => Math.min(Math.max(200, ttl / 10), ttl / 2);

/** Keeps the process alive until the returned function is called. */
export function stayAlive(): () => void {
    const timer = setInterval(() => {}, 1 << 30);
    return () => clearInterval(timer);
}

/**
 * A lease that was acquired, and is renewed until it is released or the process ends. It does not keep the process
 * alive. Whatever the key guards should refuse a fencing token below the highest that it has seen.
 */
export class Lease {
    readonly key: string;
    readonly fencingToken: number;
    /** With `slots`: the number of its place, from 1, that no other lease of the key has. */
    readonly slot: number | undefined;
    /** Aborted with LeaseLost before the lease ends: stop then. In withLock() also by the signal of the options. */
    readonly signal: AbortSignal;
    readonly #control = new AbortController();
    readonly #held: Held;
    readonly #warn: (message: string) => void;
    readonly #margin: number;
    #timer: NodeJS.Timeout | undefined;
    #why = 'this process was busy or suspended for too long';
    #lost: LeaseLost | undefined;
    #release: Promise<void> | undefined;
    /** The last report, after which the worker has it no more. */
    #last: Report | undefined;
    #settle = () => {};

    /** @internal */
    constructor(held: Held, grant: Grant, warn: (message: string) => void) {
        this.key = held.order.claim.key;
        this.fencingToken = grant.fencingToken;
        this.slot = grant.slot;
        this.signal = this.#control.signal;
        this.#margin = margin(held.order.claim.ttl);
        [this.#held, this.#warn] = [held, warn];
        held.order.grant = grant;
        held.hear = (report) => this.#hear(report);
        this.#watch();
    }

    /** The secret that proves the lease to the service. */
    get token(): string {
        return this.#held.order.claim.token;
    }

    /** Seconds for which the lease lasts at least, unless it is ended by force. Right also if the event loop was blocked. */
    remaining(): number {
        return Math.max(0, this.#left()) / 1e3;
    }

    /** Whether the lease lasts for so long, and for the time in which the work is told: for loops that never wait. */
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

    /** @internal Aborts the signal: the work is wanted no more. */
    cancel(reason: unknown): void {
        this.#control.abort(reason);
    }

    /** Milliseconds; the worker writes the end. */
    #left(): number {
        return Number(Atomics.load(this.#held.order.end, 0)) - now();
    }

    #watch(): void {
        const left = this.#left() - this.#margin;
        if (left <= 0) return this.#lose(this.#why);
        this.#timer = setTimeout(() => this.#watch(), Math.min(left, 1000)); // A suspension stops timers.
        this.#timer.unref();
    }

    #lose(why: string): void {
        clearTimeout(this.#timer);
        this.#lost ??= new LeaseLost(`the lease of '${this.key}' is lost, stop: ${why}`, { key: this.key });
        this.#control.abort(this.#lost);
    }

    #hear(report: Report): void {
        if (report.is === 'granted') return; // Once more, by a worker that took the place of one that died.
        if (report.is === 'troubled') return void (this.#why = report.why);
        if (report.is === 'failed') this.#why = report.failure.message; // The watch tells, before the end.
        if (report.is === 'lost') this.#lose(report.why);
        forget(this.#held);
        this.#last = report;
        this.#settle();
    }

    async #giveBack(): Promise<void> {
        const isOver = this.#left() <= 0;
        clearTimeout(this.#timer);
        if (!this.#last) {
            const rest = stayAlive();
            const settled = new Promise<void>((resolve) => (this.#settle = resolve));
            drop(this.#held);
            await settled;
            rest();
        }
        const last = this.#last!;
        if (isOver) this.#lose(this.#why);
        if (last.is === 'released' && last.how === 'gone') this.#lose(last.why);
        if (this.#lost) throw this.#lost;
        if (last.is === 'failed') this.#warn(`'${this.key}' is not released and will expire: ${this.#why}`);
        if (last.is === 'released' && last.how === 'unreached') {
            this.#warn(`'${this.key}' is not released and will expire: ${last.why}`);
        }
    }
}
