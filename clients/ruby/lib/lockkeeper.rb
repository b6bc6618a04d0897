# frozen_string_literal: true

require "logger"

# A client of the lock service lockkeeper: leases that are renewed while the work runs.
#
#   LockKeeper::Client.new("http://localhost:8080").lock("report", ttl: 30, wait: 60) do |lease|
#     write(total, fence: lease.fencing_token)
#   end
module LockKeeper
  class << self
    # Takes warnings: of a service that is unreachable, and of a lease that could not be released.
    attr_writer :logger

    def logger
      @logger ||= Logger.new($stderr, level: Logger::WARN, progname: "lockkeeper")
    end
  end
end

require_relative "lockkeeper/version"
require_relative "lockkeeper/errors"
require_relative "lockkeeper/time"
require_relative "lockkeeper/connection"
require_relative "lockkeeper/answer"
require_relative "lockkeeper/certificates"
require_relative "lockkeeper/service"
require_relative "lockkeeper/keys"
require_relative "lockkeeper/call"
require_relative "lockkeeper/absence"
require_relative "lockkeeper/claim"
require_relative "lockkeeper/claims"
require_relative "lockkeeper/wait"
require_relative "lockkeeper/lease"
require_relative "lockkeeper/client"
