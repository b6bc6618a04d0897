// Troubles in words for people: the sentences of the command line.

import { getSystemErrorMap } from 'node:util';

/** What an error of the system means, such as 'connection refused'. */
export function systemWords(error: unknown): string {
    const { errno, syscall, code, message } = error as NodeJS.ErrnoException;
    const known = errno !== undefined && syscall !== 'getaddrinfo' ? getSystemErrorMap().get(errno)?.[1] : undefined;
    return known ?? (message || code || String(error));
}

const NO_AUTHORITY = new Set(['UNABLE_TO_GET_ISSUER_CERT', 'UNABLE_TO_GET_ISSUER_CERT_LOCALLY', 'CERT_SIGNATURE_FAILURE',
    'DEPTH_ZERO_SELF_SIGNED_CERT', 'SELF_SIGNED_CERT_IN_CHAIN', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE']);

/** What the error of a connection means, and whether it stays the same however often one asks. */
export function connectionWords(error: NodeJS.ErrnoException): { why: string; isFinal: boolean } {
    const { code = '', message } = error;
    const final = (why: string) => ({ why, isFinal: true });
    if (/wrong.version.number|packet.length.too.long|record.layer.failure/i.test(`${code} ${message}`)) {
        return final('no TLS is spoken there: is it http://?');
    }
    if (NO_AUTHORITY.has(code)) {
        return final('its certificate is not signed by an authority that is trusted here: name the file of that authority'
            + ' (`ca`, LOCKKEEPER_CA)');
    }
    if (/alert.*certificate/i.test(`${code} ${message}`)) {
        return final('it asks for a client certificate that it trusts: name its files (`cert` and `certKey`, LOCKKEEPER_CERT'
            + ' and LOCKKEEPER_CERT_KEY)');
    }
    if (code === 'ERR_PROXY') return final(message);
    if (/^(CERT_|ERR_TLS_CERT)|HOSTNAME_MISMATCH|INVALID_(CA|PURPOSE)/.test(code)) {
        return final(`its certificate is not accepted: ${message}`);
    }
    return { why: code === 'ECONNRESET' ? 'the connection was closed before the end of the answer' : systemWords(error), isFinal: false };
}

/** What to do about a request that is refused. */
export function refusal(code: string, told: string, hasApiKey: boolean): string {
    const settings = '`apiKey`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE';
    if (code === 'unauthenticated') {
        return hasApiKey ? `unknown API key: look at ${settings}` : `the service asks for an API key: set ${settings}`;
    }
    if (code === 'forbidden') return `${told}; use an API key with this permission and prefix`;
    return `${told}; ${code ? 'correct the request' : 'check the URL'}`;
}
