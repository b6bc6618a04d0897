// What the client throws, besides a TypeError for arguments that make no sense and the reason of your own signal.
/** The base of all errors of this package: the key, or prefix, and the status and code of the service's answer, if any. */
export class LockkeeperError extends Error {
    constructor(message, fields, options) {
        super(message, options);
        Object.assign(this, Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)));
        Object.defineProperty(this, 'name', { value: new.target.name });
    }
}
/** Others hold the key, and still held it after the wait. `owner` and the seconds left are those of the holder, if known. */
export class LockBusy extends LockkeeperError {
}
/** The lease ended, or was about to end, before the work: another client may be at work. It never comes back. */
export class LeaseLost extends LockkeeperError {
}
/** No answer, or none that helps. Nothing is held, as far as the service can be reached. */
export class ServiceUnavailable extends LockkeeperError {
}
/** A wrong request (`field` is its wrong option), or an API key that may not do this: a repeat would be refused as well. */
export class RequestRefused extends LockkeeperError {
}
/** The claim was released elsewhere, or its token used elsewhere, while it waited. Nothing is held. */
export class WaitCancelled extends LockkeeperError {
}
const KINDS = { LockBusy, LeaseLost, ServiceUnavailable, RequestRefused, WaitCancelled };
export const errorOf = ({ kind, message, fields }) => new KINDS[kind](message, fields);
