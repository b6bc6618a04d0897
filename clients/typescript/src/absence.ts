// An absence of the service while a claim is made: for how long it is waited out, as the command line does.

import { now } from './clock.js';
import type { Answer } from './http.js';

/** All in milliseconds. */
export type Limits = {
    /** Of a claim whose wait is over, or that does not wait: a restart takes less. */
    withoutWait: number;
    /** Of one that never stood in line: a machine that starts has no network or names for so long. */
    beforeLine: number;
    /** Without an answer until the first warning, and from one to the next. */
    first: number; next: number;
};

export const USUAL: Limits = { withoutWait: 5000, beforeLine: 60_000, first: 5000, next: 60_000 };

export const ANSWER_TIME = 5000; // For an answer, besides the wait: then the connection counts as silent.
const AT_ONCE = 1000; // The time of an answer, unless the service has put the claim in line.

/** The absence of the service, as a claim sees it. */
export class Absence {
    readonly #limits: Limits;
    #since: number | undefined;
    #told = -Infinity;
    #stood = false; // In line.

    constructor(limits: Limits) {
        this.#limits = limits;
    }

    /** Takes note of the answer to a request that asked to wait so long; true if it is none of the service. */
    notes({ status, code, isSent }: Pick<Answer, 'status' | 'code' | 'isSent'>, sent: number, wait: number, at = now()): boolean {
        if (code && status < 500) {
            [this.#since, this.#stood] = [undefined, true];
            return false;
        }
        const wasCut = at < sent + wait;
        // A gateway cuts a wait by a 504, and an unreachable service is another status of it.
        this.#stood ||= ((status === 0 && isSent) || status === 504) && wasCut && at >= sent + AT_ONCE;
        // Until it was cut, the service was there. A suspension of this process is no absence of the service.
        this.#since ??= wasCut ? at : Math.max(sent, at - wait - ANSWER_TIME);
        return true;
    }

    /** The moment at which a claim is given up whose wait is over at this one. */
    end(over: number): number {
        if (this.#since === undefined) return over;
        const longest = this.#stood ? Infinity : this.#since + this.#limits.beforeLine;
        return Math.min(Math.max(over, this.#since + this.#limits.withoutWait), longest);
    }

    /** Whether to warn now; then not again for a while. */
    isDue(at = now()): boolean {
        if (this.#since === undefined || at < Math.max(this.#since + this.#limits.first, this.#told + this.#limits.next)) return false;
        this.#told = at;
        return true;
    }
}
