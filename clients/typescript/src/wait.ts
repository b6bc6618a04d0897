// The progress of a wait in line, from a look at the key beside the waiting request, as the command line does.

import { ANSWER_TIME } from './absence.js';
import { now, sleep } from './clock.js';
import { type Service, keyPath, send } from './http.js';

/** A wait in line. What is not known is undefined, as the place of one of several claims with one owner. */
export type Wait = {
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
export async function report(service: Service, key: string, owner: string, listener: (wait: Wait) => void, over: AbortSignal) {
    const began = now();
    for (let pause = PAUSES.first; ; ) {
        await sleep(pause, over);
        if (over.aborted) return;
        const request = { method: 'GET', path: `${keyPath(key)}?waiters=${PLACES}`, key, within: ANSWER_TIME };
        const call = send(service, request);
        over.addEventListener('abort', call.cut);
        const { status, body } = await call.answer;
        over.removeEventListener('abort', call.cut);
        if (over.aborted) return;
        pause = PAUSES.retry;
        // Nobody is in line: the claim has not arrived yet, or was granted meanwhile.
        if (status !== 200 || body.key !== key || !body.held || !body.waiters) continue;
        pause = PAUSES.next;
        const queue: { owner?: string }[] = body.queue ?? [];
        const ours = queue.flatMap((one, place) => (one.owner === owner ? [place] : [])); // Others may have given the same name.
        const ahead = ours.length === 1 ? ours[0] : undefined;
        listener({ key, owner: body.owner, ahead, waiters: body.waiters, waited: (now() - began) / 1e3 });
    }
}
