// The thread that acquires, renews and releases: it goes on while the event loop of the program is blocked.

import { parentPort, workerData } from 'node:worker_threads';
import { ANSWER_TIME, Absence, type Limits } from './absence.js';
import { backoff, now, sleep, suspended } from './clock.js';
import type { Failure } from './errors.js';
import { type Answer, type Call, type Service, didNothing, failureOf, holdsNothing, lostLeases, otherLeases, send } from './http.js';
import { type Keys, type Numbers, acquireOf, keyPath, leasesIn, refreshOf, releaseOf } from './keys.js';

/** The `ttl` in milliseconds, `until` is the end of the wait. A new token for each claim, so a repeat is the same claim. */
export type Claim = { service: Service; keys: Keys; token: string; ttl: number; until: number; limits: Limits; options: object };

/**
 * The leases of all keys: fencing tokens and slots by key, and what is left of the one that ends first. `end` comes
 * before the end that the service knows; with `capped`, those that a max_hold has cut, no renewal makes it last longer.
 */
type Grant = { numbers: Numbers; slots: Record<string, number | undefined>; ttl: number; end: number; capped: string[] };

/** Why a lease is lost, and of several keys which. */
type Loss = { why: string; keys?: string[] };

/** `end` is shared with the program: 0 before the grant and after a loss. */
export type Begin = { do: 'begin'; id: number; claim: Claim; end: BigInt64Array };

/** `drop` ends one claim or lease, `end` all of them; then 1 is written to `done`. */
export type Order = Begin | { do: 'drop'; id: number } | { do: 'end'; done: Int32Array };

/** How a release went: `gone` if there was no lease any more. */
type Released = { is: 'released' | 'gone' | 'unreached' } & Loss;

/** What became of a claim. After `failed` and `lost` something may be left for a moment, until `released`. */
export type Report = { id: number } & (
    { is: 'granted'; grant: Grant } | { is: 'failed'; failure: Failure } | { is: 'troubled' | 'waiting'; why: string }
    | ({ is: 'lost' } & Loss) | Released
);

const SLICE = 20_000; // The longest wait of one request; a longer wait repeats it in the same place.
const GRACE = 5000; // The time beyond the wait, for the repeats that the service asks for.
const SUPERSEDED = 3; // Answers in a row, after which another program counts as a user of the token.
const PAUSE = 250; // The least time between two requests of one wait.
const LEAVE_TIME = 2000; // How long a request that is given up is heard out, and the limit of a DELETE.
const RELEASE_TIME = 5000; // How long a release is repeated; each may take most of it: a late answer tells more.
const ON_ITS_WAY = 1000; // How long a request may stay behind, in a proxy that sends it on after it was given up.
const MOMENT = 250; // Of an end that nobody waits for: a service that answers is told by then.
const CAPPED = 'it lasts no longer, because the service has a max_hold for its key';

const tell = (report: Report) => parentPort!.postMessage(report);
const keepings = new Map<number, Keeping>();

/** One claim, from its first request to its release. */
class Keeping {
    readonly #id: number;
    readonly #claim: Claim;
    readonly #end: BigInt64Array;
    #lasts = 0; // The end, which stays after a loss: of several keys only one may be lost.
    #isDropped = false;
    #wake = () => {};
    readonly over: Promise<void>;

    constructor({ id, claim, end }: Begin) {
        [this.#id, this.#claim, this.#end] = [id, claim, end];
        const failed = (error: unknown) => { // Such as a token prefix that no header may have.
            tell({ id, is: 'failed', failure: { kind: 'ServiceUnavailable', message: `${error}`, fields: { outcome: 'unknown' } } });
            tell({ id, is: 'released', why: '' });
        };
        this.over = this.#run().catch(failed).finally(() => keepings.delete(id));
    }

    drop(): void {
        this.#isDropped = true;
        this.#wake();
    }

    /** Waits for a promise, or returns undefined once it is dropped. Promise.race() would leave a listener each time. */
    #unlessDropped<T>(promise: Promise<T>): Promise<T | undefined> {
        return new Promise((resolve) => {
            this.#wake = () => resolve(undefined);
            void (this.#isDropped ? this.#wake() : promise.then(resolve));
        });
    }

    async #run(): Promise<void> {
        const id = this.#id;
        const grant = await this.#acquire();
        if (!grant) return tell({ id, is: 'released', why: '' });
        if ('failure' in grant) {
            const left = grant.isUnsure ? this.#leave() : undefined;
            await Promise.race([left, left && sleep(MOMENT)]);
            tell({ id, is: 'failed', failure: grant.failure });
            await left;
            return tell({ id, is: 'released', why: '' });
        }
        this.#note(grant.end);
        if (grant.capped.length) tell({ id, is: 'troubled', why: CAPPED });
        tell({ id, is: 'granted', grant });
        const loss = await this.#renew(grant);
        if (!loss) return tell({ id, ...(await this.#release(grant)) });
        this.#note(0);
        tell({ id, is: 'lost', ...loss });
        // The work keeps what it has of several leases while it stops, for their TTL at most.
        while (this.#isSeveral && !this.#isDropped && now() < this.#lasts) {
            await this.#unlessDropped(sleep(Math.min(1000, this.#lasts - now())));
        }
        await this.#release(grant); // By the service's clock it may be there still.
        tell({ id, is: 'released', why: '' });
    }

    #note(end: number): void {
        this.#lasts = end || this.#lasts;
        Atomics.store(this.#end, 0, BigInt(Math.floor(end)));
    }

    get #isSeveral(): boolean {
        return this.#claim.keys.claimed !== undefined;
    }

    #request(method: string, within: number, what: { path: string; body?: object }) {
        const { keys, token } = this.#claim;
        return { method, key: keys.keys[0]!, token, within, ...what };
    }

    /** Releases leases that a late request of this claim has begun: nobody knows of them. */
    async #releaseOthers(answer: Answer): Promise<void> {
        for (const { key, fencing_token: number } of otherLeases(answer)) {
            const path = `${keyPath(key ?? this.#claim.keys.keys[0]!)}?fencing_token=${number}`;
            await send(this.#claim.service, this.#request('DELETE', LEAVE_TIME, { path })).answer;
        }
    }

    /** Repeats the request until it is granted. Else a lease may exist if it is unsure; undefined if it was dropped. */
    async #acquire(): Promise<Grant | { failure: Failure; isUnsure: boolean } | undefined> {
        const { service, keys, ttl, until, limits, options } = this.#claim;
        let isUnsure = false; // A lease may exist, of an answer that was lost or late.
        let named: number | undefined; // A lease that an earlier request of this claim has begun: it is replaced.
        const absence = new Absence(limits);
        for (let failures = 0, superseded = 0; ; ) {
            const sent = now();
            const wait = Math.floor(Math.max(0, Math.min(SLICE, until - sent, absence.end(Infinity) - ANSWER_TIME - sent)));
            // Two thirds of the rest: only the answer may have been lost, so there is time for a repeat.
            const within = Math.max(500, Math.min(ANSWER_TIME, ((until + GRACE - sent - wait) * 2) / 3));
            const body = { ttl_ms: ttl, wait_ms: wait, ...options, fencing_token: named };
            const request = this.#request('POST', wait + within, acquireOf(keys, body));
            const call = send(service, request);
            const answer = await this.#unlessDropped(call.answer);
            if (!answer) return await this.#leave(call);
            const grant = this.#grant(answer, sent);
            // A late one is asked for again, which renews it.
            if (grant && grant.end - now() >= grant.ttl / 2) return grant;
            const isAbsent = absence.notes(answer, sent, wait);
            // Of several keys a no leaves what an earlier request has got.
            isUnsure = (this.#isSeveral && isUnsure) || !holdsNothing(answer) && (isUnsure || !didNothing(answer)) || named !== undefined;
            const [other] = otherLeases(answer);
            if (other && this.#isSeveral) await this.#releaseOthers(answer); // No claim of several replaces a lease.
            else if (other || answer.code === 'lock_lost') named = other?.fencing_token;
            superseded = answer.code === 'superseded' ? superseded + 1 : 0;
            const failure = failureOf(service, request, answer);
            if (superseded === SUPERSEDED) failure.kind = 'WaitCancelled';
            if (grant) failure.message = 'the answer came too late for its TTL: it was slow, or this process was suspended';
            const isBusy = failure.kind === 'LockBusy' && answer.code === 'lock_held';
            const isTold = isBusy || (answer.code !== '' && answer.status === 429); // Nothing was lost.
            const end = isAbsent ? absence.end(until) : isTold ? until - 1 : until + GRACE;
            if (now() >= end || !['LockBusy', 'ServiceUnavailable'].includes(failure.kind)) {
                if (failure.kind === 'ServiceUnavailable') failure.message = `${keys.name} was not acquired: ${failure.message}`;
                return { failure, isUnsure };
            }
            if (absence.isDue()) {
                const left = until - now();
                const more = left >= 1000 && left < Infinity ? `${Math.floor(left / 1000)} s more ` : '';
                tell({ id: this.#id, is: 'waiting', why: `waiting ${more}for ${keys.name}, retrying: ${failure.message}` });
            }
            failures = isBusy ? 0 : failures + 1;
            const pause = isBusy ? sent + PAUSE - now() : Math.max(answer.retryAfter, backoff(failures));
            await this.#unlessDropped(sleep(Math.min(pause, end - now())));
            if (this.#isDropped) return await this.#leave();
        }
    }

    /** Leaves the line, and releases what was granted meanwhile, also by a request that a DELETE overtakes. */
    async #leave(call?: Call): Promise<undefined> {
        const request = this.#request('DELETE', LEAVE_TIME, releaseOf(this.#claim.keys));
        const leave = () => send(this.#claim.service, request).answer;
        const first = leave();
        const last = call && (await Promise.race([call.answer, sleep(LEAVE_TIME)]));
        call?.cut();
        const grant = last && this.#grant(last, now());
        if (grant) {
            this.#note(grant.end);
            await this.#release(grant);
        } else if (!(last && holdsNothing(last) && !this.#isSeveral) && ((await first).status !== 204 || call)) {
            const until = now() + ON_ITS_WAY;
            while (now() < until && (await leave()).status !== 204) await sleep(PAUSE);
        }
    }

    /** Returns why the lease is lost, or undefined once it was dropped. */
    async #renew(grant: Grant): Promise<Loss | undefined> {
        const calls = new Map<number, Call>(); // By the time of sending. A slow one is heard out beside the next.
        const loss = await this.#renewals(grant, calls);
        for (const call of calls.values()) call.cut();
        return loss;
    }

    async #renewals({ numbers, end, ttl, capped }: Grant, calls: Map<number, Call>): Promise<Loss | undefined> {
        const { service, keys, ttl: asked } = this.#claim;
        const what = refreshOf(keys, numbers, asked);
        let why = 'this process was suspended, or the machine is overloaded';
        // A capped lease is renewed only to hear of its loss. Leases of one moment are not renewed in one moment.
        const third = () => ((capped.length ? asked : Math.max(60, Math.min(asked, ttl))) / 3) * (1 - Math.random() / 10);
        for (let due = end - ttl + third(), failures = 0; ; ) {
            while (now() < Math.min(due, end)) {
                // In short steps, because a suspension stops timers.
                await this.#unlessDropped(sleep(Math.min(1000, due - now(), end - now())));
                if (this.#isDropped) return undefined;
            }
            const left = end - now();
            if (left <= 0) return capped.length ? { why: CAPPED, keys: capped } : { why: `it could not be renewed in time: ${why}` };
            const request = this.#request('PUT', Math.max(50, left), what);
            calls.set(now(), send(service, request));
            const answers = [...calls].map(async ([sent, call]) => ({ sent, answer: await call.answer }));
            // Half of the rest: an attempt that hangs leaves time for the next.
            const patience = sleep(Math.min(ANSWER_TIME, Math.max(50, left / 2)));
            const heard = await this.#unlessDropped(Promise.race([...answers, patience]));
            if (this.#isDropped) return undefined;
            if (!heard) {
                why = `${service.url} is slow or silent`;
                tell({ id: this.#id, is: 'troubled', why: `it could not be renewed in time: ${why}` });
                continue;
            }
            const renewed = this.#grant(heard.answer, heard.sent);
            calls.delete(heard.sent);
            if (renewed && keys.keys.every((key) => renewed.numbers[key] === numbers[key])) {
                for (const call of calls.values()) call.cut();
                calls.clear();
                ({ end, ttl, capped } = renewed);
                [due, failures] = [heard.sent + third(), 0];
                this.#note(end);
                if (capped.length) tell({ id: this.#id, is: 'troubled', why: CAPPED });
            } else {
                why = failureOf(service, request, heard.answer).message;
                if (heard.answer.code === 'lock_lost') return { why, keys: lostLeases(heard.answer).map((one) => one.key) };
                tell({ id: this.#id, is: 'troubled', why: `it could not be renewed in time: ${why}` });
                due = now() + Math.min(backoff(failures++), left / 8);
            }
        }
    }

    /** The grant in an answer, if it is for this claim: a cache may answer with another one. */
    #grant({ status, body }: Answer, sent: number): Grant | undefined {
        const { ttl_ms: ttl, waited_ms: waited } = body;
        const leases = leasesIn(this.#claim.keys, body);
        if (status > 201 || !leases || body['token'] !== this.#claim.token) return undefined;
        if (![ttl, waited].every(Number.isSafeInteger)) return undefined;
        const numbers = Object.fromEntries(leases.map((one) => [one.key, one.fencing_token]));
        const slots = Object.fromEntries(leases.map((one) => [one.key, one.slot]));
        const capped = leases.filter((one) => one.capped === true).map((one) => one.key);
        return { numbers, slots, ttl, end: sent + waited + ttl, capped };
    }

    async #release({ numbers }: Grant): Promise<Released> {
        const { service, keys } = this.#claim;
        const until = Math.min(now() + RELEASE_TIME, this.#isSeveral ? this.#lasts : Number(Atomics.load(this.#end, 0)));
        for (let failures = 0, isUnsure = false; ; failures++) {
            const request = this.#request('DELETE', RELEASE_TIME - 1000, releaseOf(keys, numbers));
            const answer = await send(service, request).answer;
            if (answer.status === 204) return { is: 'released', why: '' };
            const { message: why, kind } = failureOf(service, request, answer);
            await this.#releaseOthers(answer);
            // An earlier attempt, whose answer was lost, may have released it.
            if (kind === 'LeaseLost') return { is: isUnsure ? 'released' : 'gone', why, keys: lostLeases(answer).map((one) => one.key) };
            isUnsure ||= !didNothing(answer);
            const pause = backoff(failures);
            if (kind === 'RequestRefused' || now() + pause >= until) return { is: 'unreached', why };
            await sleep(pause);
        }
    }
}

suspended.ms = workerData;

parentPort!.on('message', async (order: Order) => {
    if (order.do === 'begin') return void keepings.set(order.id, new Keeping(order));
    if (order.do === 'end') {
        const all = [...keepings.values()];
        all.forEach((keeping) => keeping.drop());
        await Promise.all(all.map((keeping) => keeping.over));
        Atomics.store(order.done, 0, 1);
        return void Atomics.notify(order.done, 0);
    }
    const keeping = keepings.get(order.id);
    if (keeping) return keeping.drop();
    tell({ id: order.id, is: 'gone', why: '' }); // It was lost, or has failed, meanwhile.
});
