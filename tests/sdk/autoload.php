<?php

// What Composer would write: the generated classes, and Guzzle as Debian has it.

declare(strict_types=1);

require 'GuzzleHttp/autoload.php';

spl_autoload_register(function (string $class): void {
    [$package, $rest] = explode('\\', $class, 2) + [1 => ''];
    if ($package === 'Lockkeeper') {
        require __DIR__ . '/../sdk/php/lib/' . str_replace('\\', '/', $rest) . '.php';
    }
});
