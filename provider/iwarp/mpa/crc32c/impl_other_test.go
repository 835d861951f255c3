//go:build !amd64 || purego

package crc32c

const assembly = false

func implementations() []implementation { return []implementation{fallback} }
