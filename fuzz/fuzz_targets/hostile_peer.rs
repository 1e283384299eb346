//! Binary of the fuzz target that the library has in the module of the same name.
#![cfg_attr(fuzzing, no_main)]
uwarp_fuzz::binary!(hostile_peer);
