require 'json'
require 'openssl'
require 'securerandom'

own = Random.new(42)
asked = Queue.new
told = Queue.new
Thread.new { told << rand while asked.pop }
while gets
  asked << true
  puts JSON.generate(
    'Kernel#rand' => rand, 'Random.rand' => Random.rand, 'Array#shuffle' => (1..40).to_a.shuffle.join(' '),
    'rand in a thread' => told.pop, 'SecureRandom' => SecureRandom.hex(8), 'SecureRandom.uuid' => SecureRandom.uuid,
    'OpenSSL::Random' => OpenSSL::Random.random_bytes(8).unpack1('H*'), 'Random.new(42)' => own.rand
  )
  $stdout.flush
end
