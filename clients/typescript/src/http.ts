// One request over HTTP, and what its answer says.

import * as http from 'node:http';
import * as https from 'node:https';
import type { Failure } from './errors.js';

/** Where the service is; goes to the worker as it is. */
export interface Service {
    /** For messages. */
    url: string;
    /** The path before the routes, behind some proxies. */
    prefix: string;
    secure: boolean;
    /** Host and port, unix socket, certificates: options of node:http and node:https. */
    connection: https.RequestOptions;
    headers: Record<string, string>;
}

export interface Request {
    method: 'GET' | 'POST' | 'PUT' | 'DELETE';
    path: string;
    /** For messages. */
    key: string;
    token?: string;
    body?: object;
    /** Milliseconds until the answer has to be there. */
    within: number;
}

export interface Answer {
    /** 0 without an answer. */
    status: number;
    body: Record<string, any>;
    /** The code of a problem of lockkeeper; empty for every other answer. Gateways have codes too, but not this type. */
    code: string;
    /** Milliseconds. */
    retryAfter: number;
    /** Why there is no answer. */
    why: string;
    /** Whether the request may have reached the service. */
    isSent: boolean;
}

export interface Call {
    /** Never rejects. */
    answer: Promise<Answer>;
    /** Closes the connection, by which the service takes a waiting claim out of the line. */
    cut(): void;
}

// More than the largest page of a list.
const MAX_BYTES = 8 << 20;

// The time limit of a connection, which is shorter than that of an answer.
const CONNECT_TIME = 5000;

/** The path of a key. Its slashes stay, because some proxies refuse `%2F`. */
export function keyPath(key: string): string {
    return `/locks/${encodeURIComponent(key).replaceAll('%2F', '/')}`;
}

/** Sends a request on a connection of its own, so that none meets one that is broken. */
export function send(service: Service, { method, path, token, body, within }: Request): Call {
    const headers = { ...service.headers, ...(token && { 'Lock-Token': token }) };
    let cut = () => {};
    const answer = new Promise<Answer>((resolve) => {
        let isSent = false;
        let request: http.ClientRequest | undefined;
        const end = (why: string, answer?: Partial<Answer>) => {
            clearTimeout(late);
            clearTimeout(deaf);
            resolve({ status: 0, body: {}, code: '', retryAfter: 0, why, isSent, ...answer });
            request?.destroy();
        };
        const late = setTimeout(() => end(`no answer within ${(within / 1e3).toFixed(1)} s`), within);
        const deaf = setTimeout(() => end('no connection within 5 s'), Math.min(within, CONNECT_TIME));
        cut = () => end('given up');
        try {
            const own = { agent: false, method, path: service.prefix + path, headers };
            request = (service.secure ? https : http).request({ ...service.connection, ...own });
        } catch (error) {
            return end(String(error)); // A character that no header may have.
        }
        request.on('error', (error: NodeJS.ErrnoException) => end(error.message || error.code || 'no connection'));
        request.on('socket', (socket) => {
            socket.once(service.secure ? 'secureConnect' : 'connect', () => {
                isSent = true;
                clearTimeout(deaf);
            });
        });
        request.on('response', (response) => {
            const parts: Buffer[] = [];
            let size = 0;
            response.on('data', (part: Buffer) => {
                parts.push(part);
                if ((size += part.length) > MAX_BYTES) end('the answer is too long');
            });
            response.on('error', (error) => end(error.message));
            response.on('close', () => end('the answer was cut'));
            response.on('end', () => {
                if (!response.complete) return;
                const retryAfter = 1e3 * Number(response.headers['retry-after']) || 0;
                end('', { retryAfter, ...read(response.statusCode!, Buffer.concat(parts).toString()) });
            });
        });
        request.end(body && JSON.stringify(body));
    });
    return { answer, cut: () => cut() };
}

function read(status: number, text: string): Pick<Answer, 'status' | 'body' | 'code'> {
    let body: any;
    try {
        body = JSON.parse(text);
    } catch {
        // Not from lockkeeper.
    }
    body = typeof body === 'object' && body ? body : {};
    return { status, body, code: status >= 300 && body.type === `urn:lockkeeper:${body.code}` ? body.code : '' };
}

/** Whether the token holds nothing, and no request under way will change that. */
export const holdsNothing = ({ code, body }: Answer) =>
    ['lock_held', 'lock_lost', 'wait_cancelled'].includes(code) || (code !== '' && body['outcome'] === 'not_acquired');

/** Whether this request has done nothing. */
export const didNothing = (answer: Answer) =>
    holdsNothing(answer)
    || (answer.code !== '' && answer.status < 500)
    || ['draining', 'not_ready'].includes(answer.code)
    || (answer.status === 0 && !answer.isSent);

/** What an answer that is not good means. */
export function failureOf(service: Service, { method, path, key }: Request, answer: Answer): Failure {
    const { status, code, body } = answer;
    const fields = { key, code };
    const shown = key && `'${key}': `;
    if (code === 'lock_held' || code === 'too_many_waiters') {
        const { owner, retry_after_ms: left, holders, slots } = body;
        const retryAfter = typeof left === 'number' ? left / 1e3 : undefined;
        return { kind: 'LockBusy', message: body['detail'], fields: { key, owner, retryAfter, holders, slots } };
    }
    if (code === 'lock_lost') return { kind: 'LeaseLost', message: shown + body['detail'], fields: { key } };
    if (code === 'wait_cancelled') return { kind: 'WaitCancelled', message: shown + body['detail'], fields: { key } };
    const outcome = didNothing(answer) ? 'not_acquired' : 'unknown';
    if (status === 0) {
        const message = `${shown}no answer from ${service.url} to ${method} ${path}: ${answer.why}; `
            + 'is the service running there, and is this its URL (LOCKKEEPER_URL)?';
        return { kind: 'ServiceUnavailable', message, fields: { ...fields, outcome } };
    }
    const detail = code ? body['detail'] : `the answer of ${service.url} is ${status} and not from lockkeeper`;
    // A gateway may answer any of these, and be right the next time.
    if (status < 300 || status >= 500 || status === 429 || (!code && (status === 408 || status === 409))) {
        return { kind: 'ServiceUnavailable', message: shown + detail, fields: { ...fields, outcome } };
    }
    const hint = status === 401 ? '; the API key is the option apiKey, or in LOCKKEEPER_API_KEY' : '';
    return { kind: 'RequestRefused', message: shown + detail + hint, fields: { ...fields, status, field: body['field'] } };
}
