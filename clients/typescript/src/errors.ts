// What the client throws, besides a TypeError for arguments that make no sense and the reason of your own signal.

/** The base of all errors of this package. */
export class LockkeeperError extends Error {
    /** The key that the request was about; of a list, the prefix. */
    declare readonly key: string;
    /** The status and the code of the service's answer, if there is one. */
    declare readonly status?: number;
    declare readonly code?: string;

    constructor(message: string, fields: object, options?: ErrorOptions) {
        super(message, options);
        Object.assign(this, Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)));
        Object.defineProperty(this, 'name', { value: new.target.name });
    }
}

/** Other clients hold the key, and still held it when the wait was over. Nothing is held. */
export class LockBusy extends LockkeeperError {
    /** The holder's name, if it gave one, and the seconds that are left of its lease, if it expires. */
    declare readonly owner?: string;
    declare readonly retryAfter?: number;
}

/** The lease ended, or was about to end, before the work: another client may be at work. It never comes back. */
export class LeaseLost extends LockkeeperError {}

/** The service did not answer, or could not serve the request. Nothing is held, as far as it can be reached. */
export class ServiceUnavailable extends LockkeeperError {
    /** Whether the request may have taken effect. */
    declare readonly outcome: 'nothing' | 'unknown';
}

/** The request is wrong, or the API key may not do this: a repeat would be refused as well. */
export class RequestRefused extends LockkeeperError {
    /** The wrong option. */
    declare readonly field?: string;
}

/** The claim was released elsewhere, by its token, while it waited. Nothing is held. */
export class WaitCancelled extends LockkeeperError {}

const KINDS = { LockBusy, LeaseLost, ServiceUnavailable, RequestRefused, WaitCancelled };

/** An error as a thread sends it to another. */
export type Failure = { kind: keyof typeof KINDS; message: string; fields: object };

export const errorOf = ({ kind, message, fields }: Failure): LockkeeperError => new KINDS[kind](message, fields);
