export { LockClient } from './client.js';
export { LeaseLost, LockBusy, LockkeeperError, RequestRefused, ServiceUnavailable, WaitCancelled } from './errors.js';
export {} from './lease.js';
