<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Laravel\LockkeeperLock;
use Lockkeeper\LockClient;
use Symfony\Component\VarDumper\Cloner\VarCloner;
use Symfony\Component\VarDumper\Dumper\CliDumper;

/** Tokens, owners and API keys are shown to nobody who has not asked for them. */
final class SecretsTest extends TestCase
{
    private const OWNER = 'the-secret-of-an-owner';

    public function testNothingShowsASecretUnasked(): void
    {
        $client = $this->client();
        $lease = $client->acquire(self::key());
        $lock = new LockkeeperLock($client, self::key(), 5, self::OWNER);
        $lock->acquire();
        $shown = '';
        foreach ([$client, $lease, $lock] as $object) {
            ob_start();
            var_dump($object);
            print_r($object);
            $shown .= ob_get_clean() . json_encode($object) . var_export($object, true);
            $shown .= (new CliDumper())->dump((new VarCloner())->cloneVar($object), true);
        }
        self::assertStringContainsString($lease->key(), $shown);
        $token = $lease->handOver();
        self::assertMatchesRegularExpression('/^[0-9a-f]{32}$/', $token);
        foreach ([$token, self::env('API_KEY'), self::OWNER, hash('sha256', self::OWNER)] as $secret) {
            self::assertStringNotContainsString($secret, $shown);
        }
        $client->release($lease->key(), $token);
        self::assertSame(self::OWNER, $lock->owner());
        self::assertTrue($lock->release());
    }

    public function testNothingWithASecretIsSerialisedOrCopied(): void
    {
        $client = $this->client();
        $lease = $client->acquire($key = self::key());
        $lock = new LockkeeperLock($client, $key, 5, self::OWNER);
        foreach ([$client, $lease, $lock] as $object) {
            $this->thrown(\LogicException::class, fn () => serialize($object));
        }
        foreach ([$client, $lease] as $object) {
            $this->thrown(\Error::class, fn () => clone $object);
            $class = get_class($object);
            $forged = sprintf('O:%d:"%s":0:{}', strlen($class), $class);
            $this->thrown(\LogicException::class, fn () => unserialize($forged));
        }
        self::assertTrue($lease->release());
    }

    public function testNoHeaderHasALineThatNobodyWrote(): void
    {
        foreach (["secret\n", "a\r\nEvil: yes"] as $text) {
            $calls = [
                fn () => new LockClient(self::env('URL'), $text),
                fn () => $this->client()->release('key', $text),
                fn () => $this->client(tokenPrefix: $text),
            ];
            foreach ($calls as $call) {
                $wrong = $this->thrown(\InvalidArgumentException::class, $call);
                self::assertStringNotContainsString(trim($text), $wrong->getMessage());
            }
        }
    }
}
