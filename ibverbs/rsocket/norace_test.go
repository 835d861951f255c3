//go:build !race

package rsocket_test

const raceEnabled = false
