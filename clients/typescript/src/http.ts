// One request over HTTP, and what its answer says.

import * as http from 'node:http';
import * as https from 'node:https';
import type { Failure } from './errors.js';
import { agentOf, closeIdle } from './connect.js';
import { type Service, readApiKey } from './service.js';
import { connectionWords, refusal } from './words.js';

export type { Service };

/** The key, of several the first, is for errors; the answer has to be there `within` so many milliseconds. One that `isOnce` is not repeated. */
export type Request = { method: string; path: string; key: string; token?: string; body?: object; within: number; isOnce?: boolean };

/**
 * Status 0 is none, and `why`; the code is that of a problem of lockkeeper, `retryAfter` the pause in milliseconds that
 * it asks for; `isSent` if the service may have read the request, `isFinal` if a repeat would end in the same way.
 */
export type Answer = {
    status: number; why: string; body: any; code: string; retryAfter: number; isSent: boolean; isFinal: boolean; hasApiKey: boolean;
};

const NONE = { status: 0, why: '', body: {}, code: '', retryAfter: 0, isSent: false, isFinal: false, hasApiKey: false };

/** The answer never rejects; `cut` closes the connection, by which the service takes a claim out of the line. */
export type Call = { answer: Promise<Answer>; cut: () => void };

const MAX_BYTES = 8 << 20; // More than the largest page of a list.

/** Sends a request. A connection that has failed takes the idle ones with it, so that the repeat meets a new one. */
export function send(service: Service, { method, path, token, body, within, isOnce }: Request): Call {
    const { connection, prefix, url } = service;
    let apiKey: string;
    try {
        apiKey = readApiKey(service);
    } catch (error) {
        return { answer: Promise.resolve({ ...NONE, why: (error as Error).message, isFinal: true }), cut: () => {} };
    }
    const text = body && JSON.stringify(body);
    // Node sends no length by itself with a DELETE.
    const length = text !== undefined && { 'Content-Length': Buffer.byteLength(text) };
    const headers = { 'Content-Type': 'application/json', ...length, ...(apiKey && { Authorization: `Bearer ${apiKey}` }) };
    const agent = agentOf(connection);
    if (isOnce) closeIdle(agent); // One of them may be closed by the service in this moment.
    const { protocol, hostname, port, proxy } = connection;
    // A proxy tunnels https://, and is asked for the whole URL of http://.
    const isAsked = proxy && protocol === 'http:';
    const more = { ...(token && { 'Lock-Token': token }), ...(isAsked && proxy.authorization && { 'Proxy-Authorization': proxy.authorization }) };
    const own = { agent, method, path: (isAsked ? url.replace(/\/+$/, '') : prefix) + path, headers: { ...headers, ...more } };
    const request = (protocol === 'https:' ? https : http).request({ protocol, hostname, port, ...own });
    let [isSent, isDone] = [false, false];
    let cut!: (why?: string, answer?: object, isFinal?: boolean) => void;
    const answer = new Promise<Answer>((resolve) => {
        cut = (why, answer, isFinal = false) => {
            if (isDone) return;
            isDone = true;
            clearTimeout(late);
            clearTimeout(deaf);
            const told = `no answer from ${url}: ${why ?? 'given up'}`;
            resolve({ ...NONE, why: told, isSent: isSent && !isFinal, isFinal, hasApiKey: apiKey !== '', ...answer });
            if (answer) return; // The connection is kept.
            request.destroy();
            if (why !== undefined) closeIdle(agent);
        };
    });
    const late = setTimeout(() => cut(`timeout after ${(within / 1e3).toFixed(1)} s`), within);
    const deaf = setTimeout(() => cut('timeout after 5.0 s'), Math.min(within, 5000));
    request.on('error', (error) => {
        const { why, isFinal } = connectionWords(error);
        cut(why, undefined, isFinal);
    });
    request.on('socket', () => { // It is connected.
        isSent = true;
        clearTimeout(deaf);
    });
    request.on('response', (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (part) => (text += part).length > MAX_BYTES && cut('the answer is too long'));
        response.on('error', (error) => cut(connectionWords(error).why));
        response.on('close', () => cut('the answer was cut'));
        response.on('end', () => response.complete && cut('', read(response, text)));
    });
    request.end(text);
    return { answer, cut: () => cut() };
}

function read({ statusCode: status, headers }: http.IncomingMessage, text: string): Partial<Answer> {
    let body: any;
    try {
        body = JSON.parse(text);
    } catch {} // Not from lockkeeper. Gateways have codes too, but not its type.
    if (typeof body !== 'object' || !body) body = {};
    const code = status! >= 300 && body.type === `urn:lockkeeper:${body.code}` ? body.code : '';
    return { status, body, code, retryAfter: code === 'superseded' ? Number(headers['retry-after'] ?? 0) * 1e3 : 0 };
}

/** The leases that were lost, if the request was about several. */
export const lostLeases = ({ code, body }: Answer): { key: string; fencing_token?: number }[] =>
    code === 'lock_lost' && Array.isArray(body.lost) ? body.lost : [];

/** The leases that the token has, if they are not those that the request is about. One key alone has no name here. */
export const otherLeases = (answer: Answer): { key?: string; fencing_token: number }[] => {
    const { code, body } = answer;
    const found = code === 'lock_lost' || (code && body.mine) ? [body] : [];
    return [...found, ...lostLeases(answer)].filter((one) => one.fencing_token);
};

/** Whether another request of the token has its place in line, or a lease. */
const isOvertaken = (answer: Answer) => answer.code === 'superseded' || otherLeases(answer).length > 0;

/**
 * Whether the token holds nothing, and no request under way will change that; of several keys, whether this request has
 * got nothing: an earlier one may have.
 */
export const holdsNothing = (answer: Answer) =>
    !isOvertaken(answer) && (answer.code in KINDS || (answer.code !== '' && answer.body.outcome === 'not_acquired'));

/** Whether this request has done nothing, and none before it either, as far as its answer tells. */
export const didNothing = (answer: Answer) =>
    holdsNothing(answer) || (answer.status === 0 && !answer.isSent) || (answer.code !== '' && !isOvertaken(answer)
        && (answer.status < 500 || ['draining', 'not_ready'].includes(answer.code)));

const KINDS: Record<string, Failure['kind']> = {
    lock_held: 'LockBusy', lock_lost: 'LeaseLost', wait_cancelled: 'WaitCancelled',
    too_many_waiters: 'LockBusy', // The key is held, and its line is full.
};

/** What an answer that is not good means. */
export function failureOf(service: Service, { method, key }: Request, answer: Answer): Failure {
    const { status, code, body } = answer;
    // A gateway may answer any of these, and be right the next time.
    const mayPass = !answer.isFinal && (status < 300 || status >= 500 || status === 429 || (!code && [408, 409].includes(status)));
    // Of an acquire, lock_lost is about the lease that it named: the next one names another, or none.
    const isRepeated = method === 'POST' && (isOvertaken(answer) || code === 'lock_lost');
    const kind = (isRepeated ? undefined : KINDS[code]) ?? (isRepeated || mayPass ? 'ServiceUnavailable' : 'RequestRefused');
    const told = code ? `${body.detail}${kind === 'LockBusy' ? '' : ` (${status} ${code})`}`
        : status ? `the answer is ${status} and not from lockkeeper` : answer.why;
    const isRefused = kind === 'RequestRefused' && status !== 0;
    const message = isRefused ? refusal(code, told, answer.hasApiKey) + (code ? '' : `, ${service.url}`) : told;
    const about = (code && body.key) || lostLeases(answer)[0]?.key || key; // Of several.
    const fields: Record<string, unknown> = { key: about, status: status || undefined, code: code || undefined };
    if (kind === 'LockBusy') [fields.owner, fields.retryAfter] = [body.owner, body.retry_after_ms && body.retry_after_ms / 1e3];
    if (kind === 'ServiceUnavailable') fields.outcome = didNothing(answer) ? 'nothing' : 'unknown';
    if (kind === 'RequestRefused') fields.field = body.field;
    return { kind, message, fields };
}
