//! See the module of the same name.
#![cfg_attr(fuzzing, no_main)]
uwarp_fuzz::binary!(ddp_placement);
