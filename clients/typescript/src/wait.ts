// The progress of a wait in line, from a look at the key beside the waiting request, as the command line does.

import { ANSWER_TIME } from './absence.js';
import { now, sleep } from './clock.js';
import { type Service, send } from './http.js';
import { keyPath } from './keys.js';

/** A wait in line. What is not known is undefined, as the place of one of several claims with one owner. */
export type Wait = {
    /** Of several keys the one that is awaited. */
    key: string;
    /** The owner of the lease that has the key. */
    owner?: string;
    /** The number of claims ahead in line, and of all in line. */
    ahead?: number; waiters: number;
    /** The seconds that were waited by now. */
    waited: number;
};

/** In milliseconds: before the first look, until the next one if nobody was in line, and from one report to the next. */
export const PAUSES = { first: 1000, retry: 5000, next: 60_000 };

const PLACES = 100; // As many as the service allows.

/** Tells of a wait when it has begun and once a minute, until it is over. A look that fails costs nothing else. */
export async function report(service: Service, keys: string[], owner: string, listener: (wait: Wait) => void, over: AbortSignal) {
    const began = now();
    const inOrder = [...keys].sort((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
    const isOurs = (one: { owner?: string }) => one.owner === owner; // Others may have given the same name.
    for (let pause = PAUSES.first; ; ) {
        await sleep(pause, over);
        if (over.aborted) return;
        let found: { key: string; owner?: string; waiters: number; queue?: { owner?: string }[] } | undefined;
        for (const key of inOrder) {
            const request = { method: 'GET', path: `${keyPath(key)}?waiters=${PLACES}`, key, within: ANSWER_TIME };
            const call = send(service, request);
            over.addEventListener('abort', call.cut);
            const { status, body } = await call.answer;
            over.removeEventListener('abort', call.cut);
            if (over.aborted) return;
            // Else nobody is in line: the claim has not arrived yet, or was granted meanwhile.
            if (status !== 200 || body.key !== key || !body.held || !body.waiters) continue;
            found ??= body;
            if (!body.queue?.some(isOurs)) continue;
            found = body;
            break;
        }
        pause = found ? PAUSES.next : PAUSES.retry;
        if (!found) continue;
        const ours = (found.queue ?? []).flatMap((one, place) => (isOurs(one) ? [place] : []));
        const ahead = ours.length === 1 ? ours[0] : undefined;
        listener({ key: found.key, owner: found.owner, ahead, waiters: found.waiters, waited: (now() - began) / 1e3 });
    }
}
