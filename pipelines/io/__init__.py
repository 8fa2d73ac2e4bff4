"""Files in and out: answers, reviews, and the training data of other frameworks."""
