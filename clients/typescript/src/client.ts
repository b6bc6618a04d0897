// The client: its settings, and the verbs.

import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { type Duration, backoff, millis, now, sleep } from './clock.js';
import { LeaseLost, LockBusy, RequestRefused, errorOf } from './errors.js';
import { type Answer, type Request, type Service, failureOf, keyPath, send } from './http.js';
import { Lease, stayAlive } from './lease.js';
import { type Held, drop, forget, newId, take } from './thread.js';

/** The settings of a client; what is absent comes from the environment, as for the command line. */
export interface ClientOptions {
    /** Such as 'https://locks.example' or 'unix:/run/lockkeeper/lockkeeper.sock' (LOCKKEEPER_URL). */
    url?: string;
    /** The API key (LOCKKEEPER_API_KEY). */
    apiKey?: string;
    /** A file with the API key (LOCKKEEPER_API_KEY_FILE). */
    apiKeyFile?: string;
    /** The only authorities to trust: a PEM file (LOCKKEEPER_CA). */
    ca?: string;
    /** A client certificate and its private key: PEM files (LOCKKEEPER_CERT, LOCKKEEPER_CERT_KEY). */
    cert?: string;
    certKey?: string;
    /** The name that others see; by default the host and the process id. */
    owner?: string;
    /** For services with a redis.token_prefix (LOCKKEEPER_TOKEN_PREFIX). */
    tokenPrefix?: string;
    /** An API key may go over http:// to another machine without a warning (LOCKKEEPER_PLAIN_HTTP). */
    plainHttp?: boolean;
    /** Hears what is no error of the work, such as a failed release; by default process.emitWarning(). */
    warn?: (message: string) => void;
}

export interface LockOptions {
    /** How long the key stays taken if this process dies; 30 s by default. The lease is renewed every third of it. */
    ttl?: Duration;
    /** How long to wait in line, also Infinity; 0 by default. */
    wait?: Duration;
    /** Share the key with so many leases in all at most, this one included. */
    slots?: number;
    /** Share the key with all who share it, as a reader. */
    shared?: boolean;
    /** In place of the client's. */
    owner?: string;
    /** Gives up the claim; in withLock() also tells the work to stop. */
    signal?: AbortSignal;
}

/** One lease of a shared key. */
export interface SharedLease {
    owner?: string;
    fencingToken?: number;
    ttlMs?: number;
    heldMs?: number;
    slots: number;
    slot?: number;
}

/** The state of a key. */
export interface LockStatus {
    key: string;
    held: boolean;
    owner?: string;
    fencingToken?: number;
    /** The rest of its TTL in milliseconds, and the time since the lease began. */
    ttlMs?: number;
    heldMs?: number;
    /** The number of requests in line. */
    waiters: number;
    holders?: number;
    slots?: number;
    leases?: SharedLease[];
}

/** The lease that a forced release ended; of a shared key the first one. */
export interface ForcedRelease {
    key: string;
    owner?: string;
    fencingToken?: number;
    holders?: number;
}

const OPTIONS = ['ttl', 'wait', 'slots', 'shared', 'owner', 'signal'];
const ANSWER_TIME = 5000;

export class LockClient {
    readonly #service: Service;
    readonly #owner: string;
    readonly #tokenPrefix: string;
    readonly #warn: (message: string) => void;

    constructor(options: ClientOptions | string = {}) {
        const own: ClientOptions = typeof options === 'string' ? { url: options } : options;
        const { LOCKKEEPER_TOKEN_PREFIX: prefix, LOCKKEEPER_PLAIN_HTTP: plain = '' } = process.env;
        this.#warn = own.warn ?? ((message) => process.emitWarning(message, 'LockkeeperWarning'));
        this.#owner = own.owner ?? `${hostname()}:${process.pid}`;
        this.#tokenPrefix = own.tokenPrefix ?? prefix ?? '';
        this.#service = serviceOf(own);
        const { secure, connection, headers } = this.#service;
        const isLocal = /^(localhost|.+\.localhost|127\.[\d.]+|::1)$/.test(connection.hostname ?? 'localhost');
        const isAllowed = own.plainHttp ?? !['', '0', 'n', 'no', 'f', 'false', 'off'].includes(plain.toLowerCase());
        if (headers['Authorization'] && !secure && !isLocal && !isAllowed) {
            this.#warn(`the API key goes to ${connection.hostname} unencrypted: use https://, or allow it (plainHttp)`);
        }
    }

    /**
     * Runs the work under a lease, which is renewed meanwhile, also while the event loop is blocked, and released at the
     * end. Rejects with what the work throws; with LockBusy if other clients still hold the key after the wait; with
     * LeaseLost if the lease ended before the work, or the work was told that it would.
     */
    withLock<T>(key: string, work: (lease: Lease) => T | Promise<T>): Promise<T>;
    withLock<T>(key: string, options: LockOptions, work: (lease: Lease) => T | Promise<T>): Promise<T>;
    async withLock<T>(key: string, ...rest: unknown[]): Promise<T> {
        const work = rest.pop() as (lease: Lease) => T | Promise<T>;
        const options = (rest[0] ?? {}) as LockOptions;
        if (typeof work !== 'function') throw new TypeError('withLock(key, options, work): the work is no function');
        const end = stayAlive();
        try {
            return await this.#work(await this.#acquire(key, options), work, options.signal);
        } finally {
            end();
        }
    }

    /** Returns a lease, which is renewed until its release(), or null if other clients hold the key after the wait. */
    async tryLock(key: string, options: LockOptions = {}): Promise<Lease | null> {
        try {
            return await this.#acquire(key, options);
        } catch (error) {
            if (error instanceof LockBusy) return null;
            throw error;
        }
    }

    /** The state of a key, of which it proves nothing: it may change at once. */
    async get(key: string): Promise<LockStatus> {
        const request: Request = { method: 'GET', path: pathOf(key), key, within: ANSWER_TIME };
        return camel((await this.#ask(request, (body) => body['key'] === key && 'held' in body)).body) as LockStatus;
    }

    /** The held keys that begin with the prefix, in any order. */
    async *list(prefix = ''): AsyncGenerator<LockStatus, void, void> {
        for (let cursor: string | undefined = ''; cursor !== undefined; ) {
            const query = new URLSearchParams({ limit: '1000', ...(prefix && { prefix }), ...(cursor && { cursor }) });
            const request: Request = { method: 'GET', path: `/locks?${query}`, key: prefix, within: ANSWER_TIME };
            const { body } = await this.#ask(request, (body) => Array.isArray(body['locks']));
            yield* camel(body['locks']) as LockStatus[];
            cursor = body['cursor'];
        }
    }

    /** Ends the leases of a key, or the one with this fencing token; for administrators. Returns null without one. */
    async forceRelease(
        key: string,
        { reason, fencingToken }: { reason?: string; fencingToken?: number } = {},
    ): Promise<ForcedRelease | null> {
        const query = new URLSearchParams({ ...(reason && { reason }), ...(fencingToken && { fencing_token: `${fencingToken}` }) });
        const request: Request = { method: 'DELETE', path: `/admin${pathOf(key)}?${query}`, key, within: ANSWER_TIME };
        try {
            // Asked once: a repeat could end the lease of the next holder.
            const { body } = await this.#ask(request, (body) => body['key'] === key, fencingToken !== undefined);
            return camel(body) as ForcedRelease;
        } catch (error) {
            if (error instanceof LeaseLost) return null;
            throw error;
        }
    }

    async #work<T>(lease: Lease, work: (lease: Lease) => T | Promise<T>, signal?: AbortSignal): Promise<T> {
        const cancel = () => lease.cancel(signal!.reason);
        signal?.addEventListener('abort', cancel);
        let result: T | undefined;
        let failure: { error: unknown } | undefined;
        try {
            if (signal?.aborted) cancel();
            lease.signal.throwIfAborted();
            result = await work(lease);
        } catch (error) {
            failure = { error };
        }
        signal?.removeEventListener('abort', cancel);
        try {
            await lease.release();
        } catch (lost) {
            if (!failure || failure.error === lost) throw lost;
            throw new LeaseLost((lost as LeaseLost).message, { key: lease.key }, { cause: failure.error });
        }
        if (failure) throw failure.error;
        return result as T;
    }

    async #acquire(key: string, options: LockOptions): Promise<Lease> {
        const { ttl = 30, wait = 0, slots, shared, owner = this.#owner, signal } = options;
        for (const name in options) {
            // A misspelt TTL must never silently mean the default.
            if (!OPTIONS.includes(name)) throw new TypeError(`unknown option '${name}'; the options are ${OPTIONS.join(', ')}`);
        }
        pathOf(key);
        const claim = {
            ...{ service: this.#service, key, token: this.#tokenPrefix + randomBytes(16).toString('hex') },
            ...{ ttl: Math.round(millis('ttl', ttl)), until: now() + millis('wait', wait) },
            options: { owner, ...(slots !== undefined && { slots }), ...(shared && { shared }) },
        };
        signal?.throwIfAborted();
        const caller = new Error().stack ?? '';
        const end = new BigInt64Array(new SharedArrayBuffer(8));
        const held: Held = { order: { do: 'claim', id: newId(), claim, end }, isDropped: false, hear: () => {} };
        const cancel = () => drop(held);
        const rest = stayAlive();
        signal?.addEventListener('abort', cancel);
        try {
            return await new Promise<Lease>((resolve, reject) => {
                held.hear = (report) => {
                    if (report.is === 'granted') {
                        // If the claim is given up, the release of this lease is reported next.
                        if (!held.isDropped) resolve(new Lease(held, report.grant, this.#warn));
                    } else if (report.is !== 'troubled') {
                        forget(held);
                        if (held.isDropped || report.is !== 'failed') return reject(signal?.reason);
                        const error = errorOf(report.failure);
                        error.stack = `${error}${caller.slice(caller.indexOf('\n'))}`;
                        reject(error);
                    }
                };
                take(held);
            });
        } finally {
            signal?.removeEventListener('abort', cancel);
            rest();
        }
    }

    async #ask(request: Request, isGood: (body: Answer['body']) => boolean, isSafe = true): Promise<Answer> {
        const until = now() + ANSWER_TIME;
        for (let failures = 0; ; failures++) {
            const answer = await send(this.#service, request).answer;
            if (answer.status === 200 && isGood(answer.body)) return answer;
            const failure = failureOf(this.#service, request, answer);
            if (!isSafe || failure.kind !== 'ServiceUnavailable' || now() >= until) throw errorOf(failure);
            await sleep(Math.max(backoff(failures), Math.min(2000, answer.retryAfter)));
        }
    }
}

/** The path of a key that nothing on the way resolves to another one. */
function pathOf(key: string): string {
    const isWhole = typeof key === 'string' && !/\p{Surrogate}/u.test(key);
    if (isWhole && !key.split('/').some((segment) => ['', '.', '..'].includes(segment))) return keyPath(key);
    const message = `${JSON.stringify(key)} is not a key: it is a text without segments that are empty, '.' or '..'`;
    throw new RequestRefused(message, { key, status: 0, code: 'invalid_key' });
}

function serviceOf(own: ClientOptions): Service {
    const env = (name: string) => process.env[`LOCKKEEPER_${name}`] || undefined;
    const url = own.url ?? env('URL') ?? 'http://127.0.0.1:8080';
    const wrong = (why: string) => new TypeError(`'${url.replace(/\/\/.*@/, '//...@')}' is not the URL of a service: ${why}`);
    const file = (name: string | undefined) => (name === undefined ? undefined : readFileSync(name, 'utf8'));
    const socketPath = url.startsWith('unix:') ? url.slice(5) : undefined;
    if (socketPath === '') throw wrong('name a file, as in unix:/run/lockkeeper/lockkeeper.sock');
    if (!socketPath && !/^https?:\/\/[^/]/.test(url)) throw wrong('write it like http://host:8080, or unix:FILE');
    const { protocol, hostname, port, pathname, username, password, search, hash } = new URL(socketPath ? 'http://localhost' : url);
    if (username || password || search || hash) throw wrong('only a host, a port and a path are allowed');
    const prefix = pathname.replace(/\/+$/, '');
    if (prefix.endsWith('/locks')) throw wrong('leave out /locks, as in http://host:8080');
    const keyFile = own.apiKeyFile ?? env('API_KEY_FILE');
    const apiKey = (own.apiKey ?? file(keyFile) ?? env('API_KEY') ?? '').replace(/[\r\n]+$/, '');
    if (!/^[\x20-\x7e]*$/.test(apiKey)) throw new TypeError('the API key has characters that a header must not have');
    const tls = { ca: own.ca ?? env('CA'), cert: own.cert ?? env('CERT'), key: own.certKey ?? env('CERT_KEY') };
    const network = { hostname: hostname.replace(/^\[|\]$/g, ''), port: port || undefined, autoSelectFamily: true };
    const pem = Object.entries(tls).flatMap(([name, path]) => (path ? [[name, file(path)]] : []));
    return {
        ...{ url, prefix, secure: protocol === 'https:' },
        connection: { ...(socketPath ? { socketPath } : network), ...Object.fromEntries(pem) },
        headers: { 'Content-Type': 'application/json', ...(apiKey && { Authorization: `Bearer ${apiKey}` }) },
    };
}

/** The members of an answer, in the spelling of this language: `ttl_ms` is `ttlMs`. */
function camel(value: unknown): unknown {
    if (Array.isArray(value)) return value.map(camel);
    if (typeof value !== 'object' || value === null) return value;
    const spelled = (name: string) => name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [spelled(name), camel(one)]));
}
