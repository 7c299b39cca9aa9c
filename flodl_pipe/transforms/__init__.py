"""What happens to a batch between its rows and the loop: keyed, batched transforms of images, tokens and one's own."""
