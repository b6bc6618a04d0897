// The thread that acquires, renews and releases. It has its own event loop, so it goes on while that of the program is
// blocked. A Worker is started with this file by thread.ts.

import { parentPort, workerData } from 'node:worker_threads';
import { backoff, now, sleep, suspended } from './clock.js';
import type { Failure } from './errors.js';
import { type Answer, type Call, type Request, type Service, didNothing, failureOf, holdsNothing, keyPath, send } from './http.js';

/** What is wanted, in milliseconds of the clock of clock.ts. */
export interface Claim {
    service: Service;
    key: string;
    /** New for each claim, so that a repeated request is the same claim. */
    token: string;
    ttl: number;
    /** The end of the wait. */
    until: number;
    /** The rest of the body. */
    options: { owner: string; slots?: number; shared?: true };
}

export interface Grant {
    fencingToken: number;
    slot?: number;
    /** The time to rely on it, counted from the sending of the request: before the end that the service knows. */
    end: number;
    /** The time left when it began. */
    ttl: number;
    /** By a max_hold: it can be renewed no more. */
    isCapped: boolean;
}

export type Order =
    /** `end` is shared with the program, in milliseconds: 0 before the grant and after a loss. `grant` after a restart. */
    | { do: 'claim'; id: number; claim: Claim; end: BigInt64Array; grant?: Grant }
    | { do: 'release'; id: number }
    /** Releases everything, and writes 1. */
    | { do: 'end'; done: Int32Array };

export type Released = 'released' | 'gone' | 'unreached';

export type Report = { id: number } & (
    | { is: 'granted'; grant: Grant }
    | { is: 'failed'; failure: Failure }
    /** Not renewed this time. */
    | { is: 'troubled'; why: string }
    | { is: 'lost'; why: string }
    | { is: 'released'; how: Released; why: string }
);

// The longest wait of one request: the service's default limit. A longer wait is a loop that keeps its place.
const SLICE = 25_000;

// The time beyond the wait in which a lost answer is repeated.
const GRACE = 5000;

// The time limits of an answer: at the end of a wait, and in it, where it takes the wait besides.
const ANSWER_TIME = 5000;
const LONG_ANSWER_TIME = 10_000;

// The least time between two requests of one wait.
const PAUSE = 250;

// The time to hear out what is under way when a claim is given up, and to release.
const LEAVE_TIME = 2000;
const RELEASE_TIME = 5000;

// How long a request that was given up may still be on its way, behind a proxy that sends it on all the same.
const ON_ITS_WAY = 1000;

const CAPPED = 'it lasts no longer: the service has a max_hold for its key';

const port = parentPort!;
const tell = (report: Report) => port.postMessage(report);
const keepings = new Map<number, Keeping>();

/** One claim, from its first request to its release. */
class Keeping {
    readonly #id: number;
    readonly #claim: Claim;
    readonly #end: BigInt64Array;
    #isDropped = false;
    #wake = () => {};
    /** Resolves when nothing is left to do. */
    readonly over: Promise<void>;

    constructor({ id, claim, end, grant }: Order & { do: 'claim' }) {
        [this.#id, this.#claim, this.#end] = [id, claim, end];
        this.over = this.#run(grant).finally(() => keepings.delete(id));
    }

    /** The program wants no more of it. */
    drop(): void {
        this.#isDropped = true;
        this.#wake();
    }

    /** Waits for a promise, or returns undefined once it is dropped. (Promise.race would keep memory each time.) */
    #unlessDropped<T>(promise: Promise<T>): Promise<T | undefined> {
        return new Promise((resolve) => {
            this.#wake = () => resolve(undefined);
            this.#isDropped ? resolve(undefined) : void promise.then(resolve);
        });
    }

    async #run(before?: Grant): Promise<void> {
        const id = this.#id;
        const grant = before ?? (await this.#acquire());
        if (!grant) return tell({ id, is: 'released', how: 'released', why: '' });
        if ('kind' in grant) return tell({ id, is: 'failed', failure: grant });
        this.#note(grant.end);
        tell({ id, is: 'granted', grant });
        const lost = await this.#renew(grant);
        if (lost !== undefined) {
            this.#note(0);
            return tell({ id, is: 'lost', why: lost });
        }
        tell({ id, is: 'released', ...(await this.#release(grant)) });
    }

    #note(end: number): void {
        Atomics.store(this.#end, 0, BigInt(Math.floor(end)));
    }

    #request(method: Request['method'], within: number, body?: object, after = ''): Request {
        const { key, token } = this.#claim;
        return { method, path: keyPath(key) + after, key, token, body, within };
    }

    /** Repeats the request with the same token. Leaves nothing behind without a grant; undefined if it was dropped. */
    async #acquire(): Promise<Grant | Failure | undefined> {
        const { service, ttl, until, options } = this.#claim;
        let isUnsure = false; // A lease may exist whose answer was lost or came too late.
        for (let tries = 1, failures = 0; ; tries++) {
            const sent = now();
            const wait = Math.floor(Math.min(SLICE, Math.max(0, until - sent)));
            const isLong = sent + wait + LONG_ANSWER_TIME <= until + GRACE;
            const within = wait + (isLong ? LONG_ANSWER_TIME : ANSWER_TIME);
            const request = this.#request('POST', within, { ttl_ms: ttl, wait_ms: wait, ...options });
            const call = send(service, request);
            const answer = await this.#unlessDropped(call.answer);
            if (!answer) {
                await this.#withdraw(call);
                return undefined;
            }
            const grant = this.#grant(answer, sent);
            // An answer that was long on its way is asked for again: this renews the lease.
            if (grant && grant.end - now() >= grant.ttl / 2) return grant;
            isUnsure = !holdsNothing(answer) && (isUnsure || !didNothing(answer));
            const message = `'${request.key}': the answers take longer than half of the TTL; use a longer one`;
            const fields = { key: request.key, outcome: 'unknown', code: '' };
            const failure: Failure = grant
                ? { kind: 'ServiceUnavailable', message, fields }
                : failureOf(service, request, answer);
            const isBusy = failure.kind === 'LockBusy';
            const isTold = isBusy || answer.code === 'quota_exceeded'; // It answers, so there is no need of grace.
            const isOver = isTold ? now() >= until - 1 : now() >= until + GRACE && tries > 1;
            if (isOver || !(isBusy || failure.kind === 'ServiceUnavailable')) {
                if (isUnsure) await this.#withdraw();
                return failure;
            }
            failures = isTold ? 0 : failures + 1;
            const isHeld = answer.code === 'lock_held'; // Its Retry-After is the rest of the holder's lease.
            const pause = isHeld ? sent + PAUSE - now() : Math.max(backoff(failures), Math.min(LEAVE_TIME, answer.retryAfter));
            await this.#unlessDropped(sleep(pause));
            if (this.#isDropped) {
                await this.#withdraw();
                return undefined;
            }
        }
    }

    /** Leaves the line, and releases a lease that was granted meanwhile. */
    async #withdraw(call?: Call): Promise<void> {
        const leave = () => send(this.#claim.service, this.#request('DELETE', LEAVE_TIME)).answer;
        const first = leave();
        let last: Answer | void = undefined;
        if (call) {
            // The DELETE may overtake the request.
            last = await Promise.race([call.answer, sleep(LEAVE_TIME)]);
            call.cut();
            const grant = last && this.#grant(last, now());
            if (grant) {
                this.#note(grant.end);
                return void (await this.#release(grant));
            }
        }
        if ((await first).status === 204 && !call) return;
        const until = now() + ON_ITS_WAY;
        while (!(last && holdsNothing(last)) && now() < until && (await leave()).status !== 204) await sleep(PAUSE);
    }

    /** Returns why the lease is lost, or undefined once it was dropped. */
    async #renew({ fencingToken, end, ttl, isCapped }: Grant): Promise<string | undefined> {
        const { service, ttl: asked } = this.#claim;
        let why = 'this process was suspended, or the machine is overloaded';
        // A capped lease is asked for only to hear of its loss.
        const third = () => (isCapped ? asked : Math.max(60, Math.min(asked, ttl))) / 3;
        let due = end - ttl + third();
        for (;;) {
            // In short steps, because a suspension stops timers.
            while (now() < Math.min(due, end)) {
                await this.#unlessDropped(sleep(Math.min(1000, Math.min(due, end) - now())));
                if (this.#isDropped) return undefined;
            }
            const sent = now();
            const left = end - sent;
            if (left <= 0) return isCapped ? CAPPED : `it could not be renewed in time: ${why}`;
            // Half of the rest: an attempt that hangs leaves time for the next.
            const within = Math.min(ANSWER_TIME, Math.max(50, left / 2));
            const body = { ttl_ms: asked, fencing_token: fencingToken };
            const request = this.#request('PUT', within, body, '/refresh');
            const call = send(service, request);
            const answer = await this.#unlessDropped(call.answer);
            if (!answer) return call.cut(), undefined;
            const grant = this.#grant(answer, sent);
            if (grant?.fencingToken === fencingToken) {
                ({ end, ttl, isCapped } = grant);
                due = sent + third();
                this.#note(end);
                if (isCapped) tell({ id: this.#id, is: 'troubled', why: CAPPED });
                continue;
            }
            if (answer.code === 'lock_lost') return answer.body['detail'];
            why = failureOf(service, request, answer).message;
            tell({ id: this.#id, is: 'troubled', why: `it could not be renewed in time: ${why}` });
            due = now() + Math.min(500, Math.max(20, left / 8));
        }
    }

    /** Returns the grant in an answer, if it is one for this claim: a cache may answer with another one. */
    #grant({ status, body }: Answer, sent: number): Grant | undefined {
        const { key, token } = this.#claim;
        const { fencing_token: fencingToken, ttl_ms: ttl, waited_ms: waited, slot, capped } = body;
        const isOne = (status === 200 || status === 201) && body['key'] === key && body['token'] === token;
        if (!isOne || ![fencingToken, ttl, waited].every(Number.isSafeInteger)) return undefined;
        return { fencingToken, slot, ttl, end: sent + waited + ttl, isCapped: capped === true };
    }

    async #release({ fencingToken }: Grant): Promise<{ how: Released; why: string }> {
        const until = Math.min(now() + RELEASE_TIME, Number(Atomics.load(this.#end, 0)));
        for (let failures = 0, isUnsure = false; ; failures++) {
            const request = this.#request('DELETE', LEAVE_TIME, undefined, `?fencing_token=${fencingToken}`);
            const answer = await send(this.#claim.service, request).answer;
            if (answer.status === 204) return { how: 'released', why: '' };
            const { message: why, kind } = failureOf(this.#claim.service, request, answer);
            // An earlier attempt, whose answer was lost, may have released it.
            if (answer.code === 'lock_lost') return { how: isUnsure ? 'released' : 'gone', why };
            isUnsure ||= answer.isSent;
            const pause = backoff(failures);
            if (kind === 'RequestRefused' || now() + pause >= until) return { how: 'unreached', why };
            await sleep(pause);
        }
    }
}

suspended.ms = workerData.suspended;

port.on('message', async (order: Order) => {
    if (order.do === 'claim') {
        keepings.set(order.id, new Keeping(order));
    } else if (order.do === 'release') {
        const keeping = keepings.get(order.id);
        // It was lost meanwhile, or has failed.
        keeping ? keeping.drop() : tell({ id: order.id, is: 'released', how: 'gone', why: '' });
    } else {
        const all = [...keepings.values()];
        all.forEach((keeping) => keeping.drop());
        await Promise.all(all.map((keeping) => keeping.over));
        Atomics.store(order.done, 0, 1);
        Atomics.notify(order.done, 0);
    }
});
