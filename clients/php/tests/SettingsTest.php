<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Duration;
use Lockkeeper\Internal\Holding;
use Lockkeeper\Internal\Ticket;
use Lockkeeper\Internal\Token;
use Lockkeeper\LockClient;

/** How a client finds its service: variables, files, unix sockets; and times as texts. */
final class SettingsTest extends TestCase
{
    private string $file;

    protected function setUp(): void
    {
        $this->file = sys_get_temp_dir() . '/' . bin2hex(random_bytes(8));
    }

    protected function tearDown(): void
    {
        @unlink($this->file);
    }

    /** @dataProvider variables */
    #[\PHPUnit\Framework\Attributes\DataProvider('variables')]
    public function testVariablesStandForWhatIsLeftOut(string $variables, string $client): void
    {
        file_put_contents($this->file, self::env('API_KEY') . "\n");
        $take = "$variables; \$client = $client;"
            . '$lease = $client->acquire($arguments[0]); echo count(iterator_to_array($client->list($arguments[0])));';
        self::assertSame([0, '1'], self::script($take, self::key(), $this->file, self::env('API_KEY')));
    }

    public static function variables(): array
    {
        $own = 'new Lockkeeper\LockClient()';
        $file = 'putenv("LOCKKEEPER_API_KEY_FILE=$arguments[1]"); ';
        return [
            'URL and API key' => ['', $own],
            'an empty file is an absent one' => ['putenv("LOCKKEEPER_API_KEY_FILE=")', $own],
            'a file comes before the API key' => ["{$file}putenv('LOCKKEEPER_API_KEY=wrong')", $own],
            'a file and no API key' => ["{$file}putenv('LOCKKEEPER_API_KEY=')", $own],
            'what is given counts' => [
                'foreach (["URL", "API_KEY", "API_KEY_FILE"] as $name) putenv("LOCKKEEPER_$name=wrong")',
                'new Lockkeeper\LockClient("' . self::env('URL') . '", $arguments[2])',
            ],
            'a file that is given counts' => [
                'foreach (["API_KEY", "API_KEY_FILE"] as $name) putenv("LOCKKEEPER_$name=wrong");
                chdir(dirname($arguments[1]))',
                'new Lockkeeper\LockClient(apiKeyFile: basename($arguments[1]))',
            ],
        ];
    }

    /** @dataProvider durations */
    #[\PHPUnit\Framework\Attributes\DataProvider('durations')]
    public function testADurationIsNumbersWithUnits(string $text, float $seconds): void
    {
        self::assertSame($seconds, Duration::of($text));
    }

    public static function durations(): array
    {
        $all = ['90' => 90.0, '0' => 0.0, '0.2' => 0.2, '500ms' => 0.5, '1h30m' => 5400.0, '1d' => 86400.0];
        $all += ['1.5m' => 90.0, '.5s' => 0.5, '5.s' => 5.0, '0.0001s' => 0.001, '1m1m' => 120.0, '0.3s' => 0.3];
        $pairs = static fn ($text, $seconds) => [(string) $text, $seconds];
        return array_map($pairs, array_keys($all), $all);
    }

    public function testATextThatIsNoDurationIsRefused(): void
    {
        foreach (['', ' ', '1x', '-1s', '1h30', 's', '1e3', '1 s', "1s\n", '.s', 'INF'] as $text) {
            $wrong = $this->thrown(\InvalidArgumentException::class, fn () => Duration::of($text));
            self::assertStringContainsString('90s, 1h30m or 500ms', $wrong->getMessage());
        }
    }

    public function testNanIsNoDuration(): void
    {
        $client = $this->client();
        $holder = $client->acquire($key = self::key());
        $calls = [
            fn () => $client->acquire($key, 30, NAN),
            fn () => $client->acquire(self::key(), NAN),
            fn () => $client->hold(self::key(), 15, longest: NAN),
            fn () => (new Claim(Holding::own($client->service(), new Ticket($key, Token::random())), 30))->acquire(NAN),
        ];
        array_map(fn ($call) => $this->thrown(\InvalidArgumentException::class, $call), $calls);
        self::assertTrue($holder->release());
    }

    public function testTimesMayBeTexts(): void
    {
        $client = $this->client();
        $lease = $client->acquire($key = self::key(), '20m', '10s');
        self::assertLasts(1200.0, $lease->ttl());
        $lease->refresh('30m');
        self::assertLasts(1800.0, $lease->ttl());
        $client->refresh($key, $token = $lease->handOver(), '40m');
        self::assertLasts(2400.0, $client->resume($key, $token)->ttl());
        $ttls = [
            $client->acquireAll([self::key()], '20m', '1s')->remaining(),
            $client->acquireAny([self::key()], '20m', '1s')->ttl(),
            $client->withLock(self::key(), fn ($lease) => $lease->ttl(), '20m', '1s'),
            $client->withHold(self::key(), fn ($lease) => $lease->remaining(), '20m', '1s', longest: '1h'),
        ];
        array_map(fn (float $seconds) => self::assertLasts(1200.0, $seconds), $ttls);
    }

    public function testTheFileOfAnApiKeyIsReadAgainAlsoByTheKeeper(): void
    {
        file_put_contents($this->file, self::env('API_KEY'));
        $client = $this->client(apiKey: null, apiKeyFile: $this->file);
        $lease = $client->hold($key = self::key(), 2.0);
        // It is being written, or no header may have it.
        foreach (['', "\xef\xbb\xbfkey", "one\ntwo", "key\u{a0}", "a\tb"] as $unfit) {
            file_put_contents($this->file, $unfit);
            self::assertTrue($client->inspect($key)->isHeld);
        }
        sleep(3);
        self::assertTrue($lease->isHeld());
        file_put_contents($this->file, self::env('PLAIN_API_KEY'));
        $this->thrown(\Lockkeeper\Exception\RequestRefused::class, fn () => $client->forceRelease($key));
        sleep(3);
        self::assertTrue($lease->release());
        file_put_contents($this->file, 'wrong');
        $this->thrown(\Lockkeeper\Exception\RequestRefused::class, fn () => $client->acquire($key));
    }

    public function testAFileWithoutAnApiKeyIsNamed(): void
    {
        foreach (['', "\n", "\xef\xbb\xbfkey", "one\ntwo"] as $text) {
            file_put_contents($this->file, $text);
            $make = fn () => new LockClient(apiKeyFile: $this->file);
            $wrong = $this->thrown(\InvalidArgumentException::class, $make);
            self::assertSame("The file {$this->file} has no API key that can be read.", $wrong->getMessage());
        }
    }

    public function testAServiceOnAUnixSocketIsReachedAlsoByTheKeeper(): void
    {
        $proxy = new Faults(substr(self::env('URL'), strlen('http://')), [], '', '', $this->file);
        $lease = $this->client("unix:{$this->file}", proxy: 'http://127.0.0.1:1')->hold(self::key(), 3.0);
        self::eventually(fn () => preg_grep('/ PUT /', $proxy->requests()) !== []);
        self::assertTrue($lease->isHeld());
        self::assertTrue($lease->release());
        foreach (['unix:', 'unix:run/lockkeeper.sock'] as $url) {
            $this->thrown(\InvalidArgumentException::class, fn () => new LockClient($url));
        }
    }
}
