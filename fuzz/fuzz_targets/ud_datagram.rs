//! Binary of a fuzz target. Its code is in the library, in the module of the same name.
#![cfg_attr(fuzzing, no_main)]
uwarp_fuzz::binary!(ud_datagram);
