# tflint's bundled rules for the language, all of them.
plugin "terraform" {
  enabled = true
  preset  = "all"
}
