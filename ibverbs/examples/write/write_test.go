package main

// README.md names this program.
func Example() {
	main()
	// Output: hello
}
