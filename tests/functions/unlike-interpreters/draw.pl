use strict;
$| = 1;
open my $device, '<:raw', '/dev/urandom' or die;
while (<STDIN>) {
    sysread $device, my $bytes, 8;
    printf qq({"rand": %.17g, "urandom": "%s"}\n), rand, unpack 'H*', $bytes;
}
