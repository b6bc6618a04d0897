// One step of a recipe, in a process of its own.
// Usage: node recipe.js RECIPE PORT acquire KEY TTL_MS   prints the proof, or `held`
//        node recipe.js RECIPE PORT wait KEY TTL_MS      the same, when it is its turn
//        node recipe.js RECIPE PORT release KEY PROOF    prints `released`, or `lost`
'use strict';

const { recipe } = require('./recipes.js');

async function main([name, port, step, key, last]) {
    const lock = recipe(name, Number(port));
    if (step === 'release') {
        console.log((await lock.release(key, last)) ? 'released' : 'lost');
    } else {
        console.log((await lock[step](key, Number(last))) ?? 'held');
    }
    lock.close();
}

main(process.argv.slice(2));
