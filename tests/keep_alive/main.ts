// Works under a lease until its input ends or the lease is lost.
// Usage: node main.js URL KEY TTL

import { LeaseLost, keepAlive } from './keep-alive';
import { Configuration, LocksApi, ResponseError } from './sdk/typescript';

declare const process: { argv: string[]; stdin: any };

function work(signal: AbortSignal): Promise<void> {
    console.log('at work');
    return new Promise((resolve, reject) => {
        process.stdin.on('end', resolve).resume();
        signal.addEventListener('abort', () => {
            console.log('told to stop');
            reject(signal.reason);
        });
    });
}

async function main(basePath: string, key: string, ttl: number): Promise<void> {
    try {
        await keepAlive(new LocksApi(new Configuration({ basePath })), key, ttl * 1000, work);
        console.log('done');
    } catch (error) {
        if (error instanceof LeaseLost) console.log('lost');
        else if (error instanceof ResponseError && error.response.status === 409) console.log('not now');
        else throw error;
    }
    process.stdin.destroy();
}

main(process.argv[2], process.argv[3], Number(process.argv[4]));
