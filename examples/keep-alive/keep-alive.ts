// A lease that is renewed while the work goes on, for the generated client; Node 20 or a browser.
//
//     await keepAlive(locks, 'report', 30_000, async (signal, lease) => {
//         await fetch(target, { method: 'PUT', body: `${lease.fencingToken}`, signal });
//     });
//
// A held key is the client's ResponseError with status 409. If the lease is lost, `signal` is
// aborted before the lease ends, by this machine's clock; once the work has stopped, LeaseLost is
// thrown.

import { Grant, LocksApi, ResponseError } from './sdk/typescript';

// The part of the TTL after which work without a renewal is stopped. The rest is for it to stop.
const USABLE = 0.8;

// The least time between two requests of one wait, which a service may cut (25 s).
const PAUSE = 200;

/** Another client may hold the key by now, or soon. */
export class LeaseLost extends Error {}

export async function keepAlive<T>(
    locks: LocksApi,
    key: string,
    ttlMs: number,
    work: (signal: AbortSignal, lease: Grant) => Promise<T>,
    waitMs = 0,
): Promise<T> {
    const lockToken = crypto.randomUUID();
    // Whether the lease was there.
    const release = () =>
        locks.releaseLock({ key, lockToken }, { signal: AbortSignal.timeout(5_000) }).then(
            () => true,
            (error) => !isConflict(error),
        );
    const until = performance.now() + waitMs;
    let began: number;
    // With the same token it is one claim.
    const acquire = async (): Promise<Grant> => {
        began = performance.now();
        const left = Math.max(0, Math.ceil(until - began));
        try {
            return await locks.acquireLock(
                { key, acquireRequest: { ttlMs, waitMs: left, token: lockToken } },
                { signal: AbortSignal.timeout(left + 10_000) },
            );
        } catch (error) {
            if (performance.now() >= until || !(await isHeld(error))) throw error;
        }
        await new Promise((resolve) => setTimeout(resolve, began + PAUSE - performance.now()));
        return acquire();
    };
    const lease = await acquire().catch(async (error) => {
        if (!isConflict(error)) await release(); // It may have been granted.
        throw error;
    });

    const lost = new AbortController();
    const lose = () => lost.abort(new LeaseLost(key));
    let end: number;
    let ends: ReturnType<typeof setTimeout>;
    const endsAt = (moment: number) => {
        end = moment;
        clearTimeout(ends);
        ends = setTimeout(lose, moment - performance.now());
    };
    // The lease began no earlier than after the wait.
    endsAt(began! + lease.waitedMs + USABLE * lease.ttlMs);

    let renews: ReturnType<typeof setTimeout>;
    const over = new AbortController();
    const renewAfter = (pause: number) => (renews = setTimeout(() => renew(), pause));
    const renew = async () => {
        const sent = performance.now();
        const late = setTimeout(() => attempt.abort(), ttlMs / 3);
        const attempt = new AbortController();
        over.signal.addEventListener('abort', () => attempt.abort(), { once: true });
        try {
            const refreshRequest = { fencingToken: lease.fencingToken };
            const again = await locks.refreshLock({ key, lockToken, refreshRequest }, { signal: attempt.signal });
            if (over.signal.aborted || lost.signal.aborted) return;
            endsAt(sent + USABLE * again.ttlMs);
            renewAfter(ttlMs / 3);
        } catch (error) {
            if (over.signal.aborted || lost.signal.aborted) return;
            if (isConflict(error)) lose();
            else renewAfter(ttlMs / 20); // No answer, or no good one: again, until the end.
        } finally {
            clearTimeout(late);
        }
    };
    renewAfter(ttlMs / 3);

    try {
        const done = await work(lost.signal, lease);
        // Work that was busy all the time let no timer run.
        if (performance.now() >= end!) lose();
        lost.signal.throwIfAborted();
        over.abort();
        if (!(await release())) throw new LeaseLost(key);
        return done;
    } catch (error) {
        if (lost.signal.aborted) throw lost.signal.reason;
        if (!over.signal.aborted) await release();
        throw error;
    } finally {
        over.abort();
        clearTimeout(ends!);
        clearTimeout(renews!);
    }
}

/** Whether another client has the key; the body is left for the caller. */
async function isHeld(error: unknown): Promise<boolean> {
    if (!isConflict(error)) return false;
    const body = await error.response.clone().json().catch(() => ({}));
    return body.code === 'lock_held';
}

function isConflict(error: unknown): error is ResponseError {
    return error instanceof ResponseError && error.response.status === 409;
}
