// Package examples has no code: its folders are programs, most of which are run as two
// processes. README.md lists them.
package examples
