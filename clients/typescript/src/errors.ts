// What the client throws, besides a TypeError for arguments that make no sense and the reason of your own signal.

/** The base of all errors of this package: the key, or prefix, and the status and code of the service's answer, if any. */
export class LockkeeperError extends Error {
    declare readonly key: string;
    declare readonly status?: number;
    declare readonly code?: string;

    constructor(message: string, fields: object, options?: ErrorOptions) {
        super(message, options);
        Object.assign(this, Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)));
        Object.defineProperty(this, 'name', { value: new.target.name });
    }
}

/** Others hold the key, and still held it after the wait. `owner` and the seconds left are those of the holder, if known. */
export class LockBusy extends LockkeeperError {
    declare readonly owner?: string;
    declare readonly retryAfter?: number;
}

/** The lease ended, or was about to end, before the work: another client may be at work. It never comes back. */
export class LeaseLost extends LockkeeperError {}

/** No answer, or none that helps. Nothing is held, as far as the service can be reached. */
export class ServiceUnavailable extends LockkeeperError {
    /** Whether the last request may have taken effect. */
    declare readonly outcome: 'nothing' | 'unknown';
}

/** A wrong request (`field` is its wrong option), or an API key that may not do this: a repeat would be refused as well. */
export class RequestRefused extends LockkeeperError {
    declare readonly field?: string;
}

/** The claim was released elsewhere, or its token used elsewhere, while it waited. Nothing is held. */
export class WaitCancelled extends LockkeeperError {}

const KINDS = { LockBusy, LeaseLost, ServiceUnavailable, RequestRefused, WaitCancelled };

/** An error as a thread sends it to another. */
export type Failure = { kind: keyof typeof KINDS; message: string; fields: object };

/** What becomes of the message in an error. */
const SENTENCES: Record<Failure['kind'], (message: string, key: unknown) => string> = {
    LockBusy: (message) => `${message}; retry later, or wait longer`,
    LeaseLost: (message) => message,
    ServiceUnavailable: (message) => `${message}; retry later`,
    RequestRefused: (message) => message,
    WaitCancelled: (message, key) => `the claim on '${key}' has ended elsewhere: ${message}; nothing is held`,
};

export const errorOf = ({ kind, message, fields }: Failure): LockkeeperError =>
    new KINDS[kind](SENTENCES[kind](message, (fields as { key?: unknown }).key), fields);
