// Where the service is, and what goes with each request: from the options, or the environment.

import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import type { Connection } from './connect.js';
import { proxyOf } from './proxy.js';
import { systemWords } from './words.js';

/**
 * `prefix` is the path before the routes. An API key in a file is read for each request: a new one needs no restart.
 * While the file has none, as it is being rewritten, the last one counts, `apiKey`.
 */
export type Service = { url: string; prefix: string; connection: Connection; apiKey: string; apiKeyFile?: string };

/** The settings of a service, as in the options of a client. */
export type Settings = { url?: string; apiKey?: string; apiKeyFile?: string; ca?: string; cert?: string; certKey?: string; proxy?: string };

const env = (name: string) => process.env[`LOCKKEEPER_${name}`] || undefined;

export function serviceOf(own: Settings): Service {
    const url = own.url ?? env('URL') ?? 'http://127.0.0.1:8080';
    const socketPath = url.startsWith('unix:') ? url.slice(5) : undefined;
    const { protocol, hostname, port, pathname } = parse(socketPath ? 'http://localhost' : url, url);
    const apiKeyFile = own.apiKey === undefined ? own.apiKeyFile ?? env('API_KEY_FILE') : undefined;
    const apiKey = own.apiKey ?? (apiKeyFile === undefined ? env('API_KEY') : undefined) ?? '';
    const host = { hostname: hostname.replace(/^\[|\]$/g, ''), port: port ? Number(port) : undefined };
    const proxy = proxyOf(own.proxy, protocol, host.hostname, host.port ?? (protocol === 'https:' ? 443 : 80));
    const connection = { protocol, ...(socketPath ? { socketPath } : { ...host, proxy }), ...tlsOf(own) };
    const service = { url, prefix: pathname.replace(/\/+$/, ''), connection, apiKey, apiKeyFile };
    readApiKey(service);
    return service;
}

/** The API key, or nothing. Throws a TypeError that says what is wrong with the first one. */
export function readApiKey(service: Pick<Service, 'apiKey' | 'apiKeyFile'>): string {
    try {
        service.apiKey = newApiKey(service);
    } catch (error) {
        if (service.apiKeyFile === undefined || !service.apiKey) throw error;
    }
    return service.apiKey;
}

function newApiKey({ apiKey, apiKeyFile: file }: Pick<Service, 'apiKey' | 'apiKeyFile'>): string {
    let text = apiKey;
    if (file !== undefined) {
        try {
            text = readFileSync(file, 'utf8');
        } catch (error) {
            throw new TypeError(`the API key in ${file} cannot be read: ${systemWords(error)}`);
        }
    }
    text = text.replace(/[\r\n]+$/, '');
    if (!text && file !== undefined) throw new TypeError(`${file} has no API key`);
    if (/[\r\n]/.test(text)) {
        throw new TypeError('the API key has a line break: set `apiKey`, LOCKKEEPER_API_KEY or the file to one line');
    }
    if (!/^[ -~]*$/.test(text)) throw new TypeError('the API key has characters besides visible ASCII');
    return text;
}

function parse(url: string, told: string): URL {
    const shown = told.includes('@') ? `...@${told.slice(told.lastIndexOf('@') + 1)}` : told;
    const wrong = (why: string) => new TypeError(`\`${shown}\` is not the URL of a service: ${why}`);
    if (told === 'unix:') throw wrong('name a file, as in unix:/run/lockkeeper/lockkeeper.sock');
    if (!/^https?:/.test(url)) throw wrong('use http:// or https://, or unix:FILE');
    let parts: URL;
    try {
        parts = new URL(url);
    } catch {
        throw wrong('write it like http://host:8080');
    }
    if (/[@?#]/.test(url)) throw wrong('only a host, a port and a path are allowed');
    if (!/^https?:\/\/[^/\s]+(\/\S*)?$/.test(url)) throw wrong('write it like http://host:8080');
    // It would work, but with other keys than every other client's.
    if (/\/locks\/*$/.test(parts.pathname)) throw wrong('leave out /locks, as in http://host:8080');
    return parts;
}

/** The certificates, which are PEM files. */
function tlsOf(own: Settings): { ca?: string; cert?: string; key?: string } {
    const files = { ca: own.ca ?? env('CA'), cert: own.cert ?? env('CERT'), certKey: own.certKey ?? env('CERT_KEY') };
    const read = (name: keyof typeof files, part: string) => {
        const file = files[name];
        if (file === undefined) return undefined;
        let text;
        try {
            text = readFileSync(file, 'utf8');
        } catch (error) {
            throw new TypeError(`\`${name}\`: cannot read ${file}: ${systemWords(error)}; name a PEM file that this user may read`);
        }
        if (text.includes(`${part}-----`)) return text;
        throw new TypeError(`\`${name}\`: ${file} has no ${part.toLowerCase()}: it needs a part -----BEGIN ${part}-----`);
    };
    const tls = { ca: read('ca', 'CERTIFICATE'), cert: read('cert', 'CERTIFICATE'), key: read('certKey', 'PRIVATE KEY') };
    if (!tls.cert !== !tls.key) throw new TypeError('`cert` and `certKey` belong together: set both, or neither');
    try {
        createSecureContext(tls);
    } catch (error) {
        throw new TypeError(`\`cert\`: ${files.cert} with ${files.certKey}: ${(error as Error).message}`);
    }
    return tls;
}
