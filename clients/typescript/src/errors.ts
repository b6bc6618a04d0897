// What the client throws, besides a TypeError for arguments that make no sense and the reason of your own signal.

/** The base of all errors of this package. */
export class LockkeeperError extends Error {
    /** The key that the request was about; of a list, the prefix. */
    declare readonly key: string;

    constructor(message: string, fields: object = {}, options?: ErrorOptions) {
        super(message, options);
        Object.assign(this, fields);
        Object.defineProperty(this, 'name', { value: new.target.name, configurable: true });
    }
}

/** Other clients hold the key, and still held it when the wait was over. Nothing is held. */
export class LockBusy extends LockkeeperError {
    /** The holder's name, if it gave one. */
    declare readonly owner?: string;
    /** Seconds that are left of the holder's lease, if it expires. */
    declare readonly retryAfter?: number;
    /** The number of leases that share the key, and how many all of them allow. */
    declare readonly holders?: number;
    declare readonly slots?: number;
}

/** The lease ended, or was about to end, before the work: another client may be at work. It never comes back. */
export class LeaseLost extends LockkeeperError {}

/** The service did not answer, or could not serve the request. */
export class ServiceUnavailable extends LockkeeperError {
    /** Whether the last request may have taken effect. */
    declare readonly outcome: 'not_acquired' | 'unknown';
    /** The code of the service's answer; empty without one. */
    declare readonly code: string;
}

/** The request is wrong, or the API key may not do this: a repeat would be refused as well. */
export class RequestRefused extends LockkeeperError {
    /** The status of the answer; 0 if nothing was asked. */
    declare readonly status: number;
    declare readonly code: string;
    /** The wrong option. */
    declare readonly field?: string;
}

/** The claim was released elsewhere, by its token, while it waited. Nothing is held. */
export class WaitCancelled extends LockkeeperError {}

const KINDS = { LockBusy, LeaseLost, ServiceUnavailable, RequestRefused, WaitCancelled };

/** An error as a thread sends it to another. */
export interface Failure {
    kind: keyof typeof KINDS;
    message: string;
    fields: { key: string; [name: string]: unknown };
}

export const errorOf = ({ kind, message, fields }: Failure): LockkeeperError => new KINDS[kind](message, fields);
