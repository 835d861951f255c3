// Package examples has no code: its folders are programs, each of which is run as two
// processes. README.md lists them.
package examples
