// The thread that acquires, renews and releases: it goes on while the event loop of the program is blocked.
import { parentPort, workerData } from 'node:worker_threads';
import { backoff, now, sleep, suspended } from './clock.js';
import { didNothing, failureOf, holdsNothing, keyPath, otherLease, send } from './http.js';
const SLICE = 25_000; // The longest wait of one request: the service's limit. A longer wait keeps its place.
const GRACE = 5000; // The time beyond the wait in which a lost answer is repeated.
const ANSWER_TIME = 5000; // The time limit of the answer to a renewal.
const LONG_ANSWER_TIME = 10_000; // That of an answer to a claim, besides its wait.
const SUPERSEDED = 3; // Answers in a row, after which another program counts as a user of the token.
const PAUSE = 250; // The least time between two requests of one wait.
const LEAVE_TIME = 2000; // How long a request that is given up is heard out, and the limit of a DELETE.
const RELEASE_TIME = 5000; // How long a release is repeated; each may take most of it: a late answer tells more.
const ON_ITS_WAY = 1000; // How long a request may stay behind, in a proxy that sends it on after it was given up.
const CAPPED = 'it lasts no longer, because the service has a max_hold for its key';
const tell = (report) => parentPort.postMessage(report);
const keepings = new Map();
/** One claim, from its first request to its release. */
class Keeping {
    #id;
    #claim;
    #end;
    #isDropped = false;
    #wake = () => { };
    over;
    constructor({ id, claim, end }) {
        [this.#id, this.#claim, this.#end] = [id, claim, end];
        const failed = (error) => // Such as a token prefix that no header may have.
         tell({ id, is: 'failed', failure: { kind: 'ServiceUnavailable', message: `${error}`, fields: { outcome: 'unknown' } } });
        this.over = this.#run().catch(failed).finally(() => keepings.delete(id));
    }
    drop() {
        this.#isDropped = true;
        this.#wake();
    }
    /** Waits for a promise, or returns undefined once it is dropped. Promise.race() would leave a listener each time. */
    #unlessDropped(promise) {
        return new Promise((resolve) => {
            this.#wake = () => resolve(undefined);
            void (this.#isDropped ? this.#wake() : promise.then(resolve));
        });
    }
    async #run() {
        const id = this.#id;
        const grant = await this.#acquire();
        if (!grant)
            return tell({ id, is: 'released', why: '' });
        if ('kind' in grant)
            return tell({ id, is: 'failed', failure: grant });
        this.#note(grant.end);
        if (grant.isCapped)
            tell({ id, is: 'troubled', why: CAPPED });
        tell({ id, is: 'granted', grant });
        const why = await this.#renew(grant);
        if (why === undefined)
            return tell({ id, ...(await this.#release(grant)) });
        this.#note(0);
        tell({ id, is: 'lost', why });
        await this.#release(grant); // By the service's clock it may be there still.
    }
    #note = (end) => Atomics.store(this.#end, 0, BigInt(Math.floor(end)));
    #request(method, within, after = '', body) {
        const { key, token } = this.#claim;
        return { method, path: keyPath(key) + after, key, token, body, within };
    }
    /** Repeats the request until it is granted. Else it leaves nothing behind; undefined if it was dropped. */
    async #acquire() {
        const { service, key, ttl, until, options } = this.#claim;
        let isUnsure = false; // A lease may exist, of an answer that was lost or late.
        let named; // A lease that an earlier request of this claim has begun: it is replaced.
        for (let failures = 0, superseded = 0;;) {
            const sent = now();
            const wait = Math.floor(Math.min(SLICE, Math.max(0, until - sent)));
            // Two thirds of the rest: only the answer may have been lost, so there is time for a repeat.
            const within = Math.max(500, Math.min(LONG_ANSWER_TIME, ((until + GRACE - sent - wait) * 2) / 3));
            const body = { ttl_ms: ttl, wait_ms: wait, ...options, fencing_token: named };
            const request = this.#request('POST', wait + within, '', body);
            const call = send(service, request);
            const answer = await this.#unlessDropped(call.answer);
            if (!answer)
                return await this.#leave(call);
            const grant = this.#grant(answer, sent);
            // A late one is asked for again, which renews it.
            if (grant && grant.end - now() >= grant.ttl / 2)
                return grant;
            isUnsure = !holdsNothing(answer) && (isUnsure || !didNothing(answer)) || named !== undefined;
            if (otherLease(answer) || answer.code === 'lock_lost')
                named = otherLease(answer);
            superseded = answer.code === 'superseded' ? superseded + 1 : 0;
            const failure = failureOf(service, request, answer);
            if (superseded === SUPERSEDED)
                failure.kind = 'WaitCancelled';
            if (grant)
                failure.message = `'${key}': the answers take longer than half of the TTL; use a longer one`;
            const isBusy = failure.kind === 'LockBusy' && answer.code === 'lock_held';
            const isTold = isBusy || (answer.code !== '' && answer.status === 429); // Nothing was lost.
            const isOver = isTold ? now() >= until - 1 : now() >= until + GRACE;
            if (isOver || !['LockBusy', 'ServiceUnavailable'].includes(failure.kind)) {
                if (isUnsure)
                    await this.#leave();
                return failure;
            }
            failures = isBusy ? 0 : failures + 1;
            await this.#unlessDropped(sleep(isBusy ? sent + PAUSE - now() : Math.max(answer.retryAfter, backoff(failures))));
            if (this.#isDropped)
                return await this.#leave();
        }
    }
    /** Leaves the line, and releases what was granted meanwhile, also by a request that a DELETE overtakes. */
    async #leave(call) {
        const leave = () => send(this.#claim.service, this.#request('DELETE', LEAVE_TIME)).answer;
        const first = leave();
        const last = call && (await Promise.race([call.answer, sleep(LEAVE_TIME)]));
        call?.cut();
        const grant = last && this.#grant(last, now());
        if (grant) {
            this.#note(grant.end);
            await this.#release(grant);
        }
        else if (!(last && holdsNothing(last)) && ((await first).status !== 204 || call)) {
            const until = now() + ON_ITS_WAY;
            while (now() < until && (await leave()).status !== 204)
                await sleep(PAUSE);
        }
    }
    /** Returns why the lease is lost, or undefined once it was dropped. */
    async #renew(grant) {
        const calls = new Map(); // By the time of sending. A slow one is heard out beside the next.
        const why = await this.#renewals(grant, calls);
        for (const call of calls.values())
            call.cut();
        return why;
    }
    async #renewals({ fencingToken, end, ttl, isCapped }, calls) {
        const { service, ttl: asked } = this.#claim;
        let why = 'this process was suspended, or the machine is overloaded';
        // A capped lease is renewed only to hear of its loss. Leases of one moment are not renewed in one moment.
        const third = () => ((isCapped ? asked : Math.max(60, Math.min(asked, ttl))) / 3) * (1 - Math.random() / 10);
        for (let due = end - ttl + third(), failures = 0;;) {
            while (now() < Math.min(due, end)) {
                // In short steps, because a suspension stops timers.
                await this.#unlessDropped(sleep(Math.min(1000, due - now(), end - now())));
                if (this.#isDropped)
                    return undefined;
            }
            const left = end - now();
            if (left <= 0)
                return isCapped ? CAPPED : `it could not be renewed in time: ${why}`;
            const body = { ttl_ms: asked, fencing_token: fencingToken };
            const request = this.#request('PUT', Math.max(50, left), '/refresh', body);
            calls.set(now(), send(service, request));
            const answers = [...calls].map(async ([sent, call]) => ({ sent, answer: await call.answer }));
            // Half of the rest: an attempt that hangs leaves time for the next.
            const patience = sleep(Math.min(ANSWER_TIME, Math.max(50, left / 2)));
            const heard = await this.#unlessDropped(Promise.race([...answers, patience]));
            if (this.#isDropped)
                return undefined;
            if (!heard) {
                why = `${service.url} is slow or silent`;
                tell({ id: this.#id, is: 'troubled', why: `it could not be renewed in time: ${why}` });
                continue;
            }
            const renewed = this.#grant(heard.answer, heard.sent);
            calls.delete(heard.sent);
            if (renewed?.fencingToken === fencingToken) {
                for (const call of calls.values())
                    call.cut();
                calls.clear();
                ({ end, ttl, isCapped } = renewed);
                [due, failures] = [heard.sent + third(), 0];
                this.#note(end);
                if (isCapped)
                    tell({ id: this.#id, is: 'troubled', why: CAPPED });
            }
            else {
                why = failureOf(service, request, heard.answer).message;
                if (heard.answer.code === 'lock_lost')
                    return why;
                tell({ id: this.#id, is: 'troubled', why: `it could not be renewed in time: ${why}` });
                due = now() + Math.min(backoff(failures++), left / 8);
            }
        }
    }
    /** The grant in an answer, if it is for this claim: a cache may answer with another one. */
    #grant({ status, body }, sent) {
        const { fencing_token: fencingToken, ttl_ms: ttl, waited_ms: waited, slot, capped } = body;
        if (status > 201 || body['key'] !== this.#claim.key || body['token'] !== this.#claim.token)
            return undefined;
        if (![fencingToken, ttl, waited].every(Number.isSafeInteger))
            return undefined;
        return { fencingToken, slot, ttl, end: sent + waited + ttl, isCapped: capped === true };
    }
    async #release({ fencingToken }) {
        const { service } = this.#claim;
        const until = Math.min(now() + RELEASE_TIME, Number(Atomics.load(this.#end, 0)));
        for (let failures = 0, isUnsure = false;; failures++) {
            const request = this.#request('DELETE', RELEASE_TIME - 1000, `?fencing_token=${fencingToken}`);
            const answer = await send(service, request).answer;
            if (answer.status === 204)
                return { is: 'released', why: '' };
            const { message: why, kind } = failureOf(service, request, answer);
            // A late request of this claim has begun another lease, and nobody knows of it.
            const other = otherLease(answer);
            if (other)
                await send(service, this.#request('DELETE', LEAVE_TIME, `?fencing_token=${other}`)).answer;
            // An earlier attempt, whose answer was lost, may have released it.
            if (kind === 'LeaseLost')
                return { is: isUnsure ? 'released' : 'gone', why };
            isUnsure ||= !didNothing(answer);
            const pause = backoff(failures);
            if (kind === 'RequestRefused' || now() + pause >= until)
                return { is: 'unreached', why };
            await sleep(pause);
        }
    }
}
suspended.ms = workerData;
parentPort.on('message', async (order) => {
    if (order.do === 'begin')
        return void keepings.set(order.id, new Keeping(order));
    if (order.do === 'end') {
        const all = [...keepings.values()];
        all.forEach((keeping) => keeping.drop());
        await Promise.all(all.map((keeping) => keeping.over));
        Atomics.store(order.done, 0, 1);
        return void Atomics.notify(order.done, 0);
    }
    const keeping = keepings.get(order.id);
    if (keeping)
        return keeping.drop();
    tell({ id: order.id, is: 'gone', why: '' }); // It was lost, or has failed, meanwhile.
});
