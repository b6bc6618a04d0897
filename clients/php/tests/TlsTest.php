<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Internal\Certificates;
use Lockkeeper\LockClient;

/** A service behind TLS: whom it trusts, who trusts it, and what is told where they do not. */
final class TlsTest extends TestCase
{
    private static string $directory;

    /** A certificate with its private key, which is its own authority. */
    private static string $pem;

    public static function setUpBeforeClass(): void
    {
        self::$directory = sys_get_temp_dir() . '/' . bin2hex(random_bytes(8));
        mkdir(self::$directory);
        self::$pem = self::certificate('own');
    }

    public static function tearDownAfterClass(): void
    {
        array_map('unlink', glob(self::$directory . '/*'));
        rmdir(self::$directory);
    }

    public function testAnAuthorityThatIsNamedIsTrustedAlsoByTheKeeper(): void
    {
        $proxy = self::secure(self::$pem);
        $lease = $this->client($proxy->url, ca: self::$pem)->hold(self::key(), 3.0);
        self::eventually(fn () => preg_grep('/ PUT /', $proxy->requests()) !== []);
        self::assertTrue($lease->isHeld());
        self::assertTrue($lease->release());
    }

    public function testAnUntrustedCertificateIsRefusedWithItsRemedy(): void
    {
        foreach ([[], ['ca' => self::certificate('other')]] as $options) {
            $proxy = self::secure(self::$pem);
            $client = $this->client($proxy->url, ...$options);
            $refused = $this->thrown(RequestRefused::class, fn () => $client->acquire('key', wait: 60.0));
            $remedy = ': its certificate is not signed by an authority that is trusted here: name the file of that'
                . ' authority (ca:, LOCKKEEPER_CA); ';
            self::assertStringContainsString($remedy, $refused->getMessage());
            self::assertSame([0, '', Outcome::NotAcquired], [$refused->status, $refused->problem, $refused->outcome]);
        }
    }

    public function testTlsToAPlainPortIsRefusedWithItsRemedy(): void
    {
        $client = $this->client(str_replace('http:', 'https:', self::env('URL')));
        $refused = $this->thrown(RequestRefused::class, fn () => $client->acquire('key', wait: 60.0));
        self::assertStringEndsWith(': no TLS is spoken there: is it http://?', $refused->getMessage());
    }

    public function testACertificateOfTheClientIsShownAlsoByTheKeeper(): void
    {
        $proxy = self::secure(self::$pem, self::$pem);
        $own = ['ca' => self::$pem, 'cert' => self::$pem, 'certKey' => self::$pem];
        $lease = $this->client($proxy->url, ...$own)->hold(self::key(), 3.0);
        self::eventually(fn () => preg_grep('/ PUT /', $proxy->requests()) !== []);
        self::assertTrue($lease->isHeld());
        self::assertTrue($lease->release());
    }

    public function testFilesThatWillNotDoAreNamed(): void
    {
        $wrong = [['ca' => '/no/such'], ['cert' => self::$pem], ['certKey' => self::$pem]];
        foreach ($wrong as $options) {
            $this->thrown(\InvalidArgumentException::class, fn () => new LockClient('https://127.0.0.1', ...$options));
        }
        $proxy = self::secure(self::$pem);
        $client = $this->client($proxy->url, ca: __FILE__);
        $refused = $this->thrown(RequestRefused::class, fn () => $client->acquire('key'));
        self::assertStringContainsString(__FILE__, $refused->getMessage());
    }

    public function testAServiceThatDemandsACertificateIsToldFromOneThatIsAway(): void
    {
        // The words of curl: of TLS 1.3, TLS 1.2, and a connection that broke.
        $words = 'OpenSSL SSL_read: OpenSSL/3.0.19: error:0A00045C:SSL routines::tlsv13 alert certificate required';
        $older = 'OpenSSL/3.0.19: error:0A000410:SSL routines::sslv3 alert handshake failure';
        foreach ([[56, $words], [35, $older]] as [$code, $why]) {
            self::assertStringContainsString('LOCKKEEPER_CERT_KEY', Certificates::refusal($code, $why));
        }
        self::assertNull(Certificates::refusal(35, 'OpenSSL SSL_connect: Connection reset by peer'));
        self::assertNull(Certificates::refusal(28, 'Connection timed out'));
    }

    public function testVariablesStandForFilesThatAreLeftOut(): void
    {
        $proxy = self::secure(self::$pem, self::$pem);
        $code = 'foreach (["CA", "CERT", "CERT_KEY"] as $name) putenv("LOCKKEEPER_$name=$arguments[1]");
            $client = new Lockkeeper\LockClient($arguments[0], getenv("LOCKKEEPER_API_KEY"));
            echo json_encode($client->inspect("key")->isHeld);';
        self::assertSame([0, 'false'], self::script($code, $proxy->url, self::$pem));
        $code = 'putenv("LOCKKEEPER_CA="); $client = new Lockkeeper\LockClient(getenv("LOCKKEEPER_URL"), "x"); echo 7;';
        self::assertSame([0, '7'], self::script($code));
    }

    private static function secure(string ...$tls): Faults
    {
        return new Faults(substr(self::env('URL'), strlen('http://')), [], ...$tls);
    }

    private static function certificate(string $name): string
    {
        $file = self::$directory . "/$name.pem";
        $asked = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-batch', '-days', '2', '-subj', "/CN=$name"];
        $asked = [...$asked, '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', $file, '-out', "$file.crt"];
        exec('openssl ' . implode(' ', array_map('escapeshellarg', $asked)) . ' 2>&1', $said, $code);
        self::assertSame(0, $code, implode("\n", $said));
        file_put_contents($file, file_get_contents("$file.crt"), FILE_APPEND);
        return $file;
    }
}
