# frozen_string_literal: true

module LockKeeper
  # A wait in line, as `on_wait` hears of it: the key, of several that which is awaited, its holder's `owner`, the number of claims that
  # are `ahead` of this one, and the seconds that it has `waited`. `owner` and `ahead` are nil if they
  # are unknown, as with several holders, or several claims of this owner; `raw` has all members of
  # the answer.
  Wait = Struct.new(:key, :owner, :ahead, :waited, :raw, keyword_init: true) do
    # Calls the listener when the wait has begun, and once a minute, in a thread of its own. Returns a
    # call that ends that.
    def self.report(service, keys, owner, over, listener)
      began = LockKeeper.now
      mutex = Mutex.new
      changed = ConditionVariable.new
      is_over = false
      rest = lambda do |seconds|
        moment = LockKeeper.now + seconds
        mutex.synchronize do
          changed.wait(mutex, TICK) until is_over || LockKeeper.now >= moment
          is_over
        end
      end
      thread = Thread.new do
        pause = Wait::FIRST
        until rest.call(pause) || LockKeeper.now >= over
          wait = look(service, keys, owner, began)
          pause = wait ? Wait::NEXT : Wait::RETRY
          # One that is over by now is not told.
          tell(wait, listener) if wait && !mutex.synchronize { is_over }
        end
      end
      thread.report_on_exception = false
      thread.name = "lockkeeper wait"
      lambda do
        mutex.synchronize { is_over = true and changed.broadcast }
      end
    rescue ThreadError => error # The process has too many threads.
      LockKeeper.logger.warn("lock #{keys.map { |key| "'#{key}'" }.join(", ")}: its wait is not told: #{error.message}")
      -> {}
    end

    def self.tell(wait, listener)
      listener.call(wait)
    rescue Exception => error # rubocop:disable Lint/RescueException -- the claim goes on
      LockKeeper.logger.error("lock '#{wait.key}': the callback for its wait failed: #{error.full_message}")
    end
    private_class_method :tell

    # The wait, if somebody is in line: the claim may not have arrived yet, or was granted meanwhile.
    def self.look(service, keys, owner, began)
      found = ours = nil
      keys.sort_by(&:b).each do |key|
        path = "#{Service.path(key)}?waiters=#{Wait::PLACES}"
        answer = Call.new(service, "GET", path, limit: Service::ANSWER).wait
        raw = answer.body
        next unless answer.status == 200 && raw["held"] && raw["waiters"].to_i.positive?

        # Others may have given the same name.
        places = Array(raw["queue"]).each_index.select { |index| raw["queue"][index]["owner"] == owner }
        found, ours = [key, raw], places if found.nil? || places.any?
        break if places.any?
      end
      return unless found

      key, raw = found
      ahead = ours.first if ours.size == 1
      new(key: key, owner: raw["owner"], ahead: ahead, waited: LockKeeper.now - began, raw: raw)
    end
    private_class_method :look
  end

  # All in seconds.
  Wait::FIRST = 1.0 # before the first look: most leases are granted before
  Wait::RETRY = 5.0 # until the next one, if nobody was in line
  Wait::NEXT = 60.0
  Wait::PLACES = 100 # that a look asks for: as many as the service allows
end
