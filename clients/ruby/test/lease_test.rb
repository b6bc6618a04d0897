# frozen_string_literal: true

require_relative "helper"

class LeaseTest < TestCase
  def test_options_and_members
    value = @client.lock("a/b c", ttl: "1m", wait: "2s", slots: 3, owner: "me") do |lease|
      body = @fake.seen.first.body
      assert_equal [60_000, 3, "me"], body.values_at("ttl_ms", "slots", "owner")
      assert_includes 1..2000, body["wait_ms"]
      refute body.key?("shared")
      assert_equal 101, lease.fencing_token
      assert_includes 50..60, lease.remaining
      assert lease.still_mine?(45)
      refute lease.still_mine?("61s")
      assert_same lease, lease.check!
      :value
    end
    assert_equal :value, value
    assert free?("a/b c")
    assert_equal "101", @fake.seen.last.body["fencing_token"]
    @client.lock("k", shared: true) { |lease| assert_equal true, @fake.seen.last.body["shared"], lease.inspect }
  end

  def test_a_lease_is_used_once
    lease = @client.lock("k")
    lease.use { refute free? }
    error = assert_raises(LockKeeper::WaitCancelled) { lease.use { flunk } }
    assert_equal "the claim on 'k' was given up; nothing is held", error.message
    assert free?
  end

  def test_a_value_of_the_block_that_is_still_to_come_is_refused
    [[1].each, [1].lazy.map { flunk }, Enumerator.new { flunk }].each do |value|
      assert_raises(TypeError) { @client.lock("k") { value } }
      assert free?
    end
  end

  def test_a_wrong_number_of_slots_is_no_exclusive_lease
    [0, false].each do |slots|
      @client.lock("k", slots: slots) { assert_equal slots, @fake.seen.last.body["slots"] }
    end
  end

  def test_units_of_the_slots
    @client.lock("k", slots: 8, units: 3) { assert_equal [8, 3], @fake.seen.last.body.values_at("slots", "units") }
  end

  def test_several_keys
    @client.lock(["b", { key: "a/é", shared: true }, { "key" => "gpu", slots: 8, units: 3 }], ttl: "1m", owner: "me") do |lease|
      seen = @fake.seen.first
      assert_equal "locks", seen.key
      assert_equal({ "keys" => [{ "key" => "b" }, { "key" => "a/é", "shared" => true },
                                { "key" => "gpu", "slots" => 8, "units" => 3 }],
                     "ttl_ms" => 60_000, "wait_ms" => 0, "owner" => "me" }, seen.body)
      assert_equal %w[b a/é gpu], lease.keys
      assert_equal({ "b" => 101, "a/é" => 102, "gpu" => 103 }, lease.fencing_tokens)
      assert lease.still_mine?(50)
      refute_includes lease.inspect, lease.token
      %i[key fencing_token slot].each do |name|
        error = assert_raises(NoMethodError) { lease.public_send(name) }
        assert_includes error.message, "several keys has no `#{name}`: use `#{name}s`"
      end
      assert_nil(@client.try_lock(%w[c gpu]) { flunk })
      assert_equal("gpu", assert_raises(LockKeeper::LockBusy) { @client.lock(%w[c gpu]) { flunk } }.key)
      assert_equal 3, @fake.held.size
    end
    assert_empty @fake.held
    assert_equal [101, 102, 103], @fake.seen.last.body["leases"].map { |one| one["fencing_token"] }
  end

  def test_several_keys_are_lost_with_one_of_them
    error = assert_raises(LockKeeper::LeaseLost) do
      @client.lock(%w[a b], ttl: 0.9) do |lease|
        @fake.held.delete("b")
        until_true { lease.lost? }
        assert_equal 0, lease.remaining
        assert_equal ["a"], @fake.held.keys
        lease.check!
      end
    end
    assert_equal ["b", 102], [error.key, error.fencing_token]
    assert_includes error.message, "the lease on 'b' was lost before the work ended"
    assert_empty @fake.held
    assert_equal [101, 102], @fake.seen[1].body["leases"].map { |one| one["fencing_token"] }
  end

  def test_several_keys_that_make_no_sense
    { ["a", "b//c"] => '"b//c" is no key', { key: "a" } => "a key is a text, and several are a list", ["a", { name: "b" }] => "nil is no key",
      Array.new(4) { |number| number.to_s * 10_000 } => "4 keys are too long together" }.each do |keys, text|
      assert_includes assert_raises(LockKeeper::RequestRefused) { @client.lock(keys) { flunk } }.message, text
    end
    [{ slots: 2 }, { units: 2 }, { shared: true }].each do |share|
      error = assert_raises(ArgumentError) { @client.lock(%w[a b], **share) { flunk } }
      assert_includes error.message, "each of several keys has its own share"
    end
    assert_empty @fake.seen
  end

  def test_of_several_keys_the_one_that_is_awaited_is_told
    looks = { "a" => { key: "a", held: true, waiters: 1, queue: [{}] },
              "b" => { key: "b", held: true, owner: "other", waiters: 2, queue: [{ owner: "first" }, { owner: "me" }] } }
    @fake.replace["GET"] = ->(key, *) { [200, looks[key]] }
    @fake.replace["POST"] = ->(*) { sleep 0.2 and nil }
    @fake.held["b"] = ["of another", 1]
    told = []
    with(LockKeeper::Wait, :FIRST, 0.05) do
      @client.lock(%w[b a], wait: 60, owner: "me", on_wait: ->(wait) { told << wait and @fake.held.delete("b") }) { nil }
    end
    assert_equal ["b", "other", 1], told.first.to_h.values_at(:key, :owner, :ahead)
    assert_equal %w[a b], @fake.seen.select { |one| one.method == "GET" }.map(&:key).first(2)
  end

  def test_without_a_block_there_is_a_lease
    lease = @client.lock("k")
    assert_nil(@client.try_lock("k") { flunk })
    assert_equal 0, lease.tap(&:release).remaining
    assert lease.lost?
    assert_match(/it was released/, assert_raises(LockKeeper::LeaseLost) { lease.check! }.message)
    assert lease.release
    assert free?
    assert_equal(5, @client.try_lock("k") { 5 })
    @client.try_lock("k").release
  end

  def test_a_busy_lock_in_the_block_of_try_lock_is_told
    @fake.held["other"] = ["of another", 1]
    assert_raises(LockKeeper::LockBusy) { @client.try_lock("k") { @client.lock("other") { flunk } } }
    assert free?
  end

  def test_break_and_throw_and_a_killed_thread_release
    assert_equal 3, @client.lock("k", ttl: 60) { break 3 }
    assert free?
    catch(:done) { @client.lock("k", ttl: 60) { throw :done } }
    assert free?
    thread = Thread.new { @client.lock("k", ttl: 60) { sleep } }
    until_true { thread.status == "sleep" && !free? }
    thread.kill.join
    assert free?
  end

  # As of a signal handler, which Ruby may run between any two steps.
  def test_an_exception_at_any_line_leaves_nothing_while_its_variable_lives
    points = (1..100).find do |point|
      left = point
      kept = nil
      trace = TracePoint.new(:line) do |step|
        next unless /(client|lease)\.rb\z/.match?(step.path) && (left -= 1).zero?

        raise "of the handler"
      end
      begin
        trace.enable(target_thread: Thread.current) { @client.lock("k", ttl: 60) { |lease| kept = lease } }
      rescue RuntimeError => error
        assert_equal "of the handler", error.message
      end
      until_true { free? }
      refute kept&.still_mine?
      left.positive?
    end
    assert_operator points, :>, 20
  end

  def test_a_lease_that_nobody_keeps_is_released
    # One of them may be on a stack that the collector takes for a reference.
    Thread.new { 10.times { |number| @client.lock("k#{number}", ttl: 600) } }.join
    until_true do
      GC.start
      @fake.held.size < 10
    end
  end

  def test_one_at_a_time_in_many_threads
    inside = most = 0
    guard = Mutex.new
    threads = Array.new(5) do
      Thread.new do
        3.times do
          @client.lock("k", wait: 60) do
            guard.synchronize { most = [most, inside += 1].max }
            sleep 0.002
            guard.synchronize { inside -= 1 }
          end
        end
      end
    end
    threads.each(&:join)
    assert_equal 1, most
    assert free?
  end

  def test_list_follows_the_cursor
    pages = { nil => { locks: [{ key: "a", held: true, ttl_ms: 1500 }], cursor: "x&y" },
              "x&y" => { locks: [{ key: "b", held: true }] } }
    @fake.replace["GET"] = ->(_, _, body) { [200, pages[body["cursor"]]] }
    assert_equal([["a", 1.5], ["b", nil]], @client.list("p/é").map { |one| [one.key, one.ttl] })
    assert_equal "p/é", @fake.seen.last.body["prefix"]
  end

  def test_force_release
    [[200, { key: "k" }, true], [*problem(409, "lock_lost"), false]].each do |status, body, expected|
      @fake.replace["DELETE"] = ->(*) { [status, body] }
      assert_equal expected, @client.force_release("k", reason: "a b+&")
      assert_equal "a b+&", @fake.seen.last.body["reason"]
    end
    [[502, nil], [200, { status: "ok" }], [200, [1]]].each do |answer|
      @fake.replace["DELETE"] = ->(*) { answer }
      count = @fake.count("DELETE")
      assert_raises(LockKeeper::ServiceUnavailable) { @client.force_release("k") }
      assert_equal count + 1, @fake.count("DELETE")
    end
  end

  def test_a_look_takes_nothing_of_a_gateway
    [-> { @client.get("k").held? }, -> { !@client.list("p").empty? }].each do |look|
      answers = [[200, { status: "ok" }], [200, [1]], [200, { key: "k", held: false, locks: [] }]]
      @fake.replace["GET"] = ->(*) { answers.shift }
      assert_equal false, look.call
    end
  end

  # Losses

  def test_told_then_lost
    told = Queue.new
    error = assert_raises(LockKeeper::LeaseLost) do
      @client.lock("k", ttl: 3, on_lost: -> { told << 1 }) do |lease|
        lose
        until_true { lease.lost? }
        refute lease.still_mine?
        assert_raises(LockKeeper::LeaseLost) { lease.check! }
      end
    end
    assert_equal 1, told.pop
    assert_nil error.cause
    assert_equal 101, error.fencing_token
    assert_match(/\Athe lease on 'k' was lost before the work ended: .*; other work may overlap with yours\z/, error.message)
  end

  # As after a suspension between the grant and the block: no thread has noticed it yet.
  def test_no_block_begins_with_a_lease_that_is_over_by_then
    now = LockKeeper.method(:now).unbind.bind(LockKeeper)
    await = LockKeeper::Claim.instance_method(:await)
    claim = Class.new(LockKeeper::Claim) do
      define_method(:await) do
        Kernel.sleep 0.01 until @is_decided
        LockKeeper.stub(:now, -> { now.call + 61 }) { await.bind_call(self) }
      end
    end
    with(LockKeeper, :Claim, claim) do
      error = assert_raises(LockKeeper::LeaseLost) { @client.lock("k", ttl: 60) { flunk "the block began" } }
      assert_match(/before the work began: .*; nothing ran/, error.message)
    end
    until_true { free? }
  end

  def test_an_error_of_the_work_is_the_cause_and_an_exit_passes_unless_it_is_a_success
    { KeyError.new("x") => LockKeeper::LeaseLost, SystemExit.new(3) => SystemExit, Interrupt.new => Interrupt,
      SystemExit.new => LockKeeper::LeaseLost }.each do |error, kind|
      found = assert_raises(kind, SystemExit) do # The second one would end the tests.
        @client.lock("k", ttl: 0.9) do |lease|
          lose
          until_true { lease.lost? }
          raise error
        end
      end
      assert_kind_of kind, found
      assert_same error, kind == LockKeeper::LeaseLost ? found.cause : found
    end
  end

  def test_an_error_of_the_work_comes_out_and_releases
    assert_raises(KeyError) { @client.lock("k") { raise KeyError } }
    assert free?
  end

  def test_work_that_leaves_by_break_is_told_of_its_loss
    assert_raises(LockKeeper::LeaseLost) { @client.lock("k", ttl: 60) { lose.then { break } } }
  end

  def test_a_callback_that_fails_breaks_nothing
    [KeyError.new("of the callback"), SystemExit.new(1)].each do |error|
      assert_raises(LockKeeper::LeaseLost) do
        @client.lock("k", ttl: 0.9, on_lost: -> { raise error }) do
          lose
          until_true { @log.string.include?("the callback for its loss failed") }
        end
      end
      @log.truncate(0)
    end
  end

  def test_a_callback_that_blocks_holds_up_the_end_for_a_moment_and_a_slow_one_is_heard_out
    { 60 => 2.0..4.0, 0.3 => 0.2..1.9 }.each do |seconds, expected|
      told = ended = nil
      assert_raises(LockKeeper::LeaseLost) do
        @client.lock("k", ttl: 0.9, on_lost: -> { sleep(seconds).then { told = true } }) do |lease|
          lose
          until_true { lease.lost? }
          ended = LockKeeper.now
        end
      end
      assert_includes expected, LockKeeper.now - ended
      assert_equal seconds < 2, told == true
    end
  end

  def test_the_clock_decides_where_no_thread_has_run
    now = LockKeeper.method(:now).unbind.bind(LockKeeper)
    assert_raises(LockKeeper::LeaseLost) do
      @client.lock("k", ttl: 60) do |lease|
        LockKeeper.stub(:now, -> { now.call + 61 }) do
          refute lease.still_mine?
          assert lease.lost?
          assert_raises(LockKeeper::LeaseLost) { lease.check! }
          lease.instance_variable_get(:@claim).finish
        end
      end
    end
  end

  def test_a_renewal_that_dies_is_a_loss
    [RuntimeError.new("dead"), SystemExit.new].each do |error|
      claim = Class.new(LockKeeper::Claim) { define_method(:keep) { raise error } }
      with(LockKeeper, :Claim, claim) do
        found = assert_raises(LockKeeper::LeaseLost) do
          @client.lock("k", ttl: 60) { |lease| until_true { lease.lost? } }
        end
        assert_includes found.message, "its renewal failed"
      end
      assert free?
    end
  end

  def test_an_acquire_that_dies_is_an_error
    claim = Class.new(LockKeeper::Claim) { define_method(:take) { |*| raise NoMemoryError } }
    with(LockKeeper, :Claim, claim) { assert_raises(NoMemoryError) { @client.lock("k") { flunk } } }
    assert_nothing_is_left
  end

  def test_no_threads_left
    Thread.stub(:new, ->(*) { raise ThreadError, "can't create Thread" }) do
      assert_raises(ThreadError) { @client.lock("k") { flunk } }
    end
    assert_empty LockKeeper::Claims.open
    assert_empty @fake.seen
  end

  def test_a_release_after_the_loss_raises
    lease = @client.lock("k")
    lose
    assert_raises(LockKeeper::LeaseLost) { lease.release }
  end

  def test_the_lease_that_a_late_request_has_begun_is_released
    [false, true].each do |is_told|
      assert_raises(LockKeeper::LeaseLost) do
        @client.lock("k", ttl: 0.9) do |lease|
          @fake.held["k"] = [lease.token, 55]
          until_true { lease.lost? } if is_told
        end
      end
      assert free?
    end
  end

  def test_a_release_that_reaches_nobody_is_a_warning
    lease = @client.lock("k", ttl: 1)
    @fake.replace["DELETE"] = ->(*) { [502, nil] }
    refute lease.release
    assert_match(/WARN.*lock 'k': not released; the lease ends by its TTL: the answer is 502/, @log.string)
    refute_includes @log.string, lease.token
  end

  def test_a_lease_that_is_cut_to_less_than_the_margin_is_one_until_its_middle
    @fake.replace["POST"] = lambda do |*rest|
      status, grant = @fake.answer("POST", *rest)
      [status, grant.merge(ttl_ms: 2000, capped: true)]
    end
    @fake.replace["PUT"] = ->(*) { [502, nil] }
    assert_raises(LockKeeper::LeaseLost) do
      @client.lock("k", ttl: 60) do |lease|
        assert lease.still_mine?
        until_true { lease.lost? }
        assert_operator lease.remaining, :>, 0
      end
    end
  end

  def test_the_reason_of_a_loss_is_that_of_the_last_renewal
    answers = [[503, nil], nil]
    @fake.replace["PUT"] = ->(*) { answers.empty? ? [502, nil] : answers.shift }
    error = assert_raises(LockKeeper::LeaseLost) do
      @client.lock("k", ttl: 1.5) { |lease| until_true { lease.lost? } }
    end
    assert_includes error.message, "not be renewed in time: the answer is 502"
    assert_empty answers
  end

  def test_a_lease_is_counted_from_the_sending
    @fake.replace["POST"] = lambda do |*rest|
      @fake.answer("POST", *rest).tap { sleep 1 }
    end
    @client.lock("k", ttl: 30) { |lease| assert_operator lease.remaining, :<, 29.1 }
  end

  # Errors

  def test_busy
    @fake.held["k"] = ["of another", 1]
    error = assert_raises(LockKeeper::LockBusy) { @client.lock("k") { flunk } }
    assert_equal ["other", 1.5, "k"], [error.owner, error.retry_after, error.key]
    assert_equal "by the test; retry later, or wait longer", error.message
  end

  def test_refused
    { [401, "unauthenticated"] => "the service asks for an API key: set `api_key`",
      [403, "forbidden"] => "use an API key with this permission and prefix",
      [400, "invalid_request"] => "correct the request" }.each do |(status, code), text|
      @fake.replace["POST"] = ->(*) { problem(status, code, field: "ttl_ms") }
      error = assert_raises(LockKeeper::RequestRefused) { @client.lock("k") { flunk } }
      assert_includes error.message, text
      assert_equal [status, "ttl_ms"], [error.status, error.problem["field"]]
    end
    [301, 404, 407].each do |status|
      @fake.replace["POST"] = ->(*) { [status, { message: "of a gateway" }] }
      error = assert_raises(LockKeeper::RequestRefused) { @client.lock("k", wait: 60) { flunk } }
      assert_includes error.message, "check the URL"
    end
    @fake.replace["POST"] = ->(*) { problem(401, "unauthenticated") }
    client = LockKeeper::Client.new(@fake.url, api_key: "wrong")
    error = assert_raises(LockKeeper::RequestRefused) { client.lock("k") { flunk } }
    assert_match(/\Aunknown API key: look at `api_key`/, error.message)
    refute_includes error.full_message, "wrong"
  end

  def test_an_answer_with_the_token_of_another_claim_is_none
    @fake.replace["POST"] = lambda do |key, *|
      [201, { token: "other", key: key, fencing_token: 1, ttl_ms: 9000, waited_ms: 0 }] if @fake.count("POST") < 3
    end
    @client.lock("k") { |lease| assert_equal 101, lease.fencing_token }
  end

  def test_a_key_that_a_proxy_changes_is_refused_and_released
    @fake.replace["POST"] = lambda do |*rest|
      status, grant = @fake.answer("POST", *rest)
      [status, grant.merge(key: "another")]
    end
    error = assert_raises(LockKeeper::RequestRefused) { @client.lock("k") { flunk } }
    assert_equal "a proxy changes the key 'k'", error.message
    assert_nothing_is_left
  end

  def test_answers_that_take_as_long_as_the_ttl_are_no_lease
    @fake.replace["POST"] = ->(*rest) { @fake.answer("POST", *rest).tap { sleep 0.5 } }
    error = assert_raises(LockKeeper::ServiceUnavailable) { @client.lock("k", ttl: 0.4) { flunk } }
    assert_includes error.message, "the answer came too late for its TTL: it was slow, or this process was suspended"
    assert_nothing_is_left
  end

  def test_an_owner_that_is_no_text_is_refused_and_leaves_nothing
    assert_raises(LockKeeper::RequestRefused) { @client.lock("k", owner: "\xff") { flunk } }
    assert_nothing_is_left
    assert_empty @fake.seen
  end

  def test_https_to_a_plain_port_is_told_at_once
    url = @fake.url.sub("http:", "https:")
    error = assert_raises(LockKeeper::RequestRefused) { LockKeeper::Client.new(url).lock("k", wait: 60) { flunk } }
    assert_equal "no answer from #{url}: no TLS is spoken there: is it http://?", error.message
  end
end
