<?php

// The process beside an application that refreshes its leases. Keeper starts it, and speaks to it by pipes. With the
// argument `look` it is the process of a Lookup.

declare(strict_types=1);

namespace Lockkeeper\Internal;

if (PHP_SAPI !== 'cli') {
    exit(1);
}
spl_autoload_register(static function (string $class): void {
    require dirname(__DIR__) . strtr(substr($class, strlen('Lockkeeper')), '\\', '/') . '.php';
});
($argv[1] ?? '') === 'look' ? Lookup::run() : Keeping::run();
