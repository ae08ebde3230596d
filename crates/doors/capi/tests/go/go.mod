module kedgefs.test

go 1.22

require github.com/ebitengine/purego v0.9.1
