// An error of a step, on one line.
export function fail(message) {
    console.log(`::error::${message.replace(/[%\r\n]/g, encodeURIComponent)}`);
    process.exitCode = 1;
}
