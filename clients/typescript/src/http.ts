// One request over HTTP, and what its answer says.

import * as http from 'node:http';
import * as https from 'node:https';
import type { Failure } from './errors.js';

/** Where the service is: `connection` is for node:http and node:https, `prefix` the path before the routes. */
export type Service = {
    url: string; prefix: string; secure: boolean; connection: https.RequestOptions; headers: Record<string, string>;
};

/** The key is for messages; the answer has to be there `within` so many milliseconds. */
export type Request = { method: string; path: string; key: string; token?: string; body?: object; within: number };

export interface Answer {
    /** 0 without an answer, and why there is none. */
    status: number;
    why: string;
    body: Record<string, any>;
    /** The code of a problem of lockkeeper, else empty. Gateways have codes too, but not its type. */
    code: string;
    /** Milliseconds. */
    retryAfter: number;
    /** Whether the request may have reached the service. */
    isSent: boolean;
}

/** The answer never rejects; `cut` closes the connection, by which the service takes a claim out of the line. */
export type Call = { answer: Promise<Answer>; cut: () => void };

// More than the largest page of a list.
const MAX_BYTES = 8 << 20;

/** The path of a key. Its slashes stay, because some proxies refuse `%2F`. */
export const keyPath = (key: string) => `/locks/${encodeURIComponent(key).replaceAll('%2F', '/')}`;

/** Sends a request on a connection of its own, so that none meets one that is broken. */
export function send(service: Service, { method, path, token, body, within }: Request): Call {
    const headers = { ...service.headers, ...(token && { 'Lock-Token': token }) };
    const options = { ...service.connection, agent: false, method, path: service.prefix + path, headers };
    const request = (service.secure ? https : http).request(options);
    let isSent = false;
    let end!: (why: string, answer?: Partial<Answer>) => void;
    const answer = new Promise<Answer>((resolve) => {
        end = (why, answer) => {
            clearTimeout(late);
            clearTimeout(deaf);
            resolve({ status: 0, why, body: {}, code: '', retryAfter: 0, isSent, ...answer });
            request.destroy();
        };
    });
    const late = setTimeout(() => end(`no answer within ${(within / 1e3).toFixed(1)} s`), within);
    const deaf = setTimeout(() => end('no connection within 5 s'), Math.min(within, 5000));
    request.on('error', (error: NodeJS.ErrnoException) => end(error.message || error.code || 'no connection'));
    request.on('socket', (socket) => {
        socket.once(service.secure ? 'secureConnect' : 'connect', () => {
            isSent = true;
            clearTimeout(deaf);
        });
    });
    request.on('response', (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (part) => (text += part).length > MAX_BYTES && end('the answer is too long'));
        response.on('error', (error) => end(error.message));
        response.on('close', () => end('the answer was cut'));
        response.on('end', () => {
            const [status, wait] = [response.statusCode!, response.headers['retry-after']];
            if (response.complete) end('', { ...read(status, text), retryAfter: 1e3 * Number(wait) || 0 });
        });
    });
    request.end(body && JSON.stringify(body));
    return { answer, cut: () => end('given up') };
}

function read(status: number, text: string): Partial<Answer> {
    let body: any;
    try {
        body = JSON.parse(text);
    } catch {} // Not from lockkeeper.
    if (typeof body !== 'object' || !body) body = {};
    return { status, body, code: status >= 300 && body.type === `urn:lockkeeper:${body.code}` ? body.code : '' };
}

/** Whether the token holds nothing, and no request under way will change that. */
export const holdsNothing = ({ code, body }: Answer) =>
    ['lock_held', 'lock_lost', 'wait_cancelled'].includes(code) || (code !== '' && body['outcome'] === 'not_acquired');

/** Whether this request has done nothing. */
export const didNothing = (answer: Answer) =>
    holdsNothing(answer)
    || (answer.code !== '' && (answer.status < 500 || ['draining', 'not_ready'].includes(answer.code)))
    || (answer.status === 0 && !answer.isSent);

const KINDS: Record<string, Failure['kind']> =
    { lock_held: 'LockBusy', lock_lost: 'LeaseLost', wait_cancelled: 'WaitCancelled' };

/** What an answer that is not good means. */
export function failureOf({ url }: Service, { method, path, key }: Request, answer: Answer): Failure {
    const { status, code, body } = answer;
    const { owner, field, retry_after_ms: left } = body;
    // A gateway may answer any of these, and be right the next time.
    const mayPass = status < 300 || status >= 500 || status === 429 || (!code && [408, 409].includes(status));
    const kind: Failure['kind'] = KINDS[code] ?? (mayPass ? 'ServiceUnavailable' : 'RequestRefused');
    const why = code ? body['detail']
        : status ? `the answer of ${url} is ${status} and not from lockkeeper`
        : `no answer from ${url} to ${method} ${path}: ${answer.why}; is this the URL of the service (LOCKKEEPER_URL)?`;
    const hint = status === 401 ? '; the API key is the option apiKey, or LOCKKEEPER_API_KEY' : '';
    const message = `${code === 'lock_held' || !key ? '' : `'${key}': `}${why}${hint}`;
    const fields = { key, ...(status && { status }), ...(code && { code }) };
    if (kind === 'LockBusy') Object.assign(fields, { owner, retryAfter: left && left / 1e3 });
    if (kind === 'ServiceUnavailable') Object.assign(fields, { outcome: didNothing(answer) ? 'nothing' : 'unknown' });
    return { kind, message, fields: { ...fields, field } };
}
