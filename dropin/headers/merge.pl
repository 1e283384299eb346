#!/usr/bin/env perl
# merge.pl X86_64 AARCH64: prints the layouts of the first file. Sizes and offsets that are 8 larger
# on aarch64 are printed as "N - MUTEX": `MUTEX` is the size of a mutex beyond its 40 bytes on
# x86-64. Fails if the two files differ in anything else.
use strict;
use warnings;

my ($first, $second) = map {
    open my $file, '<', $_ or die "$_: $!\n";
    local $/;
    [split /(\d+)usize/, <$file>];
} @ARGV;
@$first == @$second or die "the two have not the same assertions\n";
for my $at (0 .. $#$first) {
    my ($one, $other) = ($first->[$at], $second->[$at]);
    if ($at % 2 == 0) {
        # A longer number may break a line elsewhere.
        (my $flat = $one) =~ s/\s+//g;
        (my $other_flat = $other) =~ s/\s+//g;
        $flat eq $other_flat or die "the two differ:\n$one\n$other\n";
        print $one;
    } elsif ($one == $other) {
        print "${one}usize";
    } elsif ($other == $one + 8) {
        print "${one}usize - MUTEX";
    } else {
        die "$one on x86-64 is $other on aarch64, which a larger mutex does not explain\n";
    }
}
