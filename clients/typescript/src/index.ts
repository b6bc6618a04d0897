export { LockClient } from './client.js';
export type { ClientOptions, ForcedRelease, LeaseStatus, LockKeys, LockOptions, LockStatus } from './client.js';
export type { Duration } from './clock.js';
export { LeaseLost, LockBusy, LockkeeperError, RequestRefused, ServiceUnavailable, WaitCancelled } from './errors.js';
export type { ClaimedKey } from './keys.js';
export { type Lease } from './lease.js';
export type { Wait } from './wait.js';
